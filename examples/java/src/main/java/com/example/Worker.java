package com.example;

import com.github.jobonce.v1.ClaimWorkRequest;
import com.github.jobonce.v1.ClaimedJob;
import com.github.jobonce.v1.CompleteWorkRequest;
import com.github.jobonce.v1.Job;
import com.github.jobonce.v1.ReleaseWorkRequest;
import com.github.jobonce.v1.RenewLeaseRequest;
import com.github.jobonce.v1.WorkServiceGrpc;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/** Claims work, one job at a time, and does it under a lease that it renews. */
final class Worker implements AutoCloseable {
  /** Does the work of a job and returns its result, which is not null. It is to stop soon once the lease is lost: somebody else may have started. */
  interface Work {
    String apply(Job job, AtomicBoolean lost) throws Exception;
  }

  private final ManagedChannel channel;
  private final Duration lease;
  private final ScheduledExecutorService renewals = Executors.newSingleThreadScheduledExecutor();

  Worker(ManagedChannel channel, Duration lease) {
    this.channel = channel;
    this.lease = lease;
  }

  /** Does one job, if there is one within the wait, and tells whether there was. */
  boolean once(Duration wait, Work work) {
    // One id for all attempts: a claim whose answer was lost is found again.
    ClaimWorkRequest claim =
        ClaimWorkRequest.newBuilder()
            .setMaxJobs(1)
            .setLeaseDuration(Calls.of(lease))
            .setWait(Calls.of(wait))
            .setRequestId(UUID.randomUUID().toString())
            .build();
    AtomicLong asked = new AtomicLong();
    var claimed =
        Calls.retry(
            wait.plus(lease),
            () -> {
              asked.set(System.nanoTime());
              return WorkServiceGrpc.newBlockingStub(channel)
                  .withDeadlineAfter(wait.toMillis() + 5000, TimeUnit.MILLISECONDS)
                  .claimWork(claim);
            });
    if (claimed.getJobsCount() == 0) {
      return false;
    }
    doUnderLease(claimed.getJobs(0), asked.get(), work);
    return true;
  }

  private void doUnderLease(ClaimedJob claimed, long asked, Work work) {
    String id = claimed.getJob().getJobId(), token = claimed.getLease().getToken();
    AtomicBoolean lost = new AtomicBoolean();
    RenewLeaseRequest renewal =
        RenewLeaseRequest.newBuilder().setJobId(id).setLeaseToken(token).setLeaseDuration(Calls.of(lease)).build();
    AtomicLong renewed = new AtomicLong(asked);
    long third = lease.toMillis() / 3;
    ScheduledFuture<?> renewing =
        renewals.scheduleAtFixedRate(
            () -> {
              long now = System.nanoTime();
              try {
                Calls.retry(Duration.ofMillis(third), () -> Calls.timed(WorkServiceGrpc.newBlockingStub(channel)).renewLease(renewal));
                renewed.set(now);
              } catch (StatusRuntimeException error) {
                // While it can be tried again, the lease is ours until it runs out. The clock of this machine only counts here.
                if (!Calls.retryable(error) || System.nanoTime() - renewed.get() >= lease.minusMillis(third).toNanos()) {
                  lost.set(true);
                }
              }
            },
            third, third, TimeUnit.MILLISECONDS);
    try {
      String result;
      try {
        result = work.apply(claimed.getJob(), lost);
      } catch (Exception failed) {
        ReleaseWorkRequest back =
            ReleaseWorkRequest.newBuilder()
                .setJobId(id)
                .setLeaseToken(token)
                .setError(cut(String.valueOf(failed.getMessage())))
                .setRetryDelay(Calls.of(Duration.ofSeconds(1)))
                .build();
        Calls.retry(lease, () -> Calls.timed(WorkServiceGrpc.newBlockingStub(channel)).releaseWork(back));
        return;
      }
      CompleteWorkRequest done = CompleteWorkRequest.newBuilder().setJobId(id).setLeaseToken(token).setResult(result).build();
      Calls.retry(lease, () -> Calls.timed(WorkServiceGrpc.newBlockingStub(channel)).completeWork(done));
    } finally {
      renewing.cancel(false);
    }
  }

  /** The service takes errors of at most 4 KiB. */
  private static String cut(String error) {
    return error.length() <= 1000 ? error : error.substring(0, 1000);
  }

  @Override
  public void close() {
    renewals.shutdownNow();
  }
}
