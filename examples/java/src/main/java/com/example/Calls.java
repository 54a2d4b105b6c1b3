package com.example;

import com.github.jobonce.v1.ErrorReason;
import com.github.jobonce.v1.IdempotencyServiceGrpc;
import com.github.jobonce.v1.RecordDeliveryRequest;
import com.github.jobonce.v1.RecordDeliveryResponse;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.AbstractBlockingStub;
import java.time.Duration;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** What a frontend needs: it records deliveries, and repeats what can be repeated. */
final class Calls {
  private static final Set<ErrorReason> RETRY_REASONS =
      Set.of(
          ErrorReason.ERROR_REASON_OVERLOADED,
          ErrorReason.ERROR_REASON_RATE_LIMITED,
          ErrorReason.ERROR_REASON_STORE_UNAVAILABLE,
          ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN);
  private static final Set<Status.Code> RETRY_CODES =
      Set.of(Status.Code.UNAVAILABLE, Status.Code.DEADLINE_EXCEEDED, Status.Code.CANCELLED);
  /** The pauses between attempts, as in docs/retry-policy.json. */
  private static final double FIRST_PAUSE = 0.05, LONGEST_PAUSE = 2;

  private static final Duration ATTEMPT = Duration.ofSeconds(5);

  private Calls() {}

  /**
   * Records a delivery. The request gets its id here, once, and keeps it over all attempts: that is how the answer of an attempt
   * that was carried out and not heard is found again.
   */
  static RecordDeliveryResponse record(ManagedChannel channel, RecordDeliveryRequest delivery, Duration patience) {
    RecordDeliveryRequest request = delivery.toBuilder().setRequestId(UUID.randomUUID().toString()).build();
    return retry(patience, () -> timed(IdempotencyServiceGrpc.newBlockingStub(channel)).recordDelivery(request));
  }

  /** Gives a call a deadline of its own, so that one which hangs does not take the time of all. */
  static <S extends AbstractBlockingStub<S>> S timed(S stub) {
    return stub.withDeadlineAfter(ATTEMPT.toMillis(), TimeUnit.MILLISECONDS);
  }

  /** Makes a call again for as long as that is of use and the patience lasts. The call must be the same each time. */
  static <T> T retry(Duration patience, Supplier<T> call) {
    long end = System.nanoTime() + patience.toNanos();
    for (double pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      try {
        return call.get();
      } catch (StatusRuntimeException error) {
        double wait = askedPause(error) + pause * ThreadLocalRandom.current().nextDouble(0.5, 1.5);
        if (!retryable(error) || System.nanoTime() + wait * 1e9 >= end) {
          throw error;
        }
        try {
          Thread.sleep((long) (wait * 1000));
        } catch (InterruptedException interrupted) {
          Thread.currentThread().interrupt();
          throw error;
        }
      }
    }
  }

  /** Tells by reason and code, never by text, whether the same call may succeed later. A newer service's reason says nothing here. */
  static boolean retryable(StatusRuntimeException error) {
    try {
      return RETRY_REASONS.contains(ErrorReason.valueOf("ERROR_REASON_" + reason(error)));
    } catch (IllegalArgumentException unknown) {
      return RETRY_CODES.contains(error.getStatus().getCode());
    }
  }

  /** The service's reason; empty when the error is not the service's. */
  static String reason(StatusRuntimeException error) {
    ErrorInfo info = detail(error, ErrorInfo.class);
    return info != null && info.getDomain().equals("jobonce") ? info.getReason() : "";
  }

  /** How many seconds the service asks to wait. */
  private static double askedPause(StatusRuntimeException error) {
    RetryInfo info = detail(error, RetryInfo.class);
    return info == null ? 0 : info.getRetryDelay().getSeconds() + info.getRetryDelay().getNanos() / 1e9;
  }

  private static <M extends com.google.protobuf.Message> M detail(StatusRuntimeException error, Class<M> type) {
    com.google.rpc.Status status = StatusProto.fromThrowable(error);
    if (status == null) {
      return null;
    }
    for (Any any : status.getDetailsList()) {
      if (any.is(type)) {
        try {
          return any.unpack(type);
        } catch (InvalidProtocolBufferException broken) {
          return null;
        }
      }
    }
    return null;
  }

  static com.google.protobuf.Duration of(Duration d) {
    return com.google.protobuf.Duration.newBuilder().setSeconds(d.getSeconds()).setNanos(d.getNano()).build();
  }
}
