package com.example;

import com.github.jobonce.v1.RecordDeliveryRequest;
import com.github.jobonce.v1.RecordDeliveryResponse;
import com.github.jobonce.v1.WorkMode;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;

/**
 * Records a delivery, or works one job off.
 *
 * <pre>java ... com.example.Main 127.0.0.1:50051 record JOB_ID BODY | work LEASE_SECONDS WORK_SECONDS</pre>
 */
public final class Main {
  private Main() {}

  public static void main(String[] args) throws Exception {
    // Plaintext is for a service on this machine; elsewhere leave usePlaintext out.
    ManagedChannel channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build();
    try {
      switch (args[1]) {
        case "record" -> record(channel, args[2], args[3]);
        case "work" -> work(channel, Duration.ofSeconds(Long.parseLong(args[2])), Duration.ofSeconds(Long.parseLong(args[3])));
        default -> throw new IllegalArgumentException(args[1]);
      }
    } catch (StatusRuntimeException error) {
      System.out.println("error " + error.getStatus().getCode() + " " + Calls.reason(error));
    } finally {
      channel.shutdownNow();
    }
  }

  private static void record(ManagedChannel channel, String jobId, String body) {
    RecordDeliveryRequest delivery =
        RecordDeliveryRequest.newBuilder().setJobId(jobId).setPayload(body).setWorkMode(WorkMode.WORK_MODE_QUEUED).build();
    RecordDeliveryResponse answer = Calls.record(channel, delivery, Duration.ofSeconds(20));
    System.out.println(answer.getDisposition() + " " + answer.getDeliveries());
  }

  private static void work(ManagedChannel channel, Duration lease, Duration takes) {
    try (Worker worker = new Worker(channel, lease)) {
      boolean found =
          worker.once(
              Duration.ofSeconds(5),
              (job, lost) -> {
                if (job.getPayload().equals("bad")) {
                  throw Status.INVALID_ARGUMENT.withDescription("the body is bad").asRuntimeException(); // As a service says that it calls.
                }
                Thread.sleep(takes.toMillis());
                if (lost.get()) {
                  throw new IllegalStateException("the lease is lost");
                }
                System.out.println("did " + job.getJobId() + " " + job.getPayload());
                return "done";
              });
      System.out.println(found ? "worked" : "no work");
    }
  }
}
