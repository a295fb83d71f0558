import apache.rocketmq.v2.*;
import apache.rocketmq.v2.FilterExpression;
import apache.rocketmq.v2.Status;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.producer.*;
import org.apache.rocketmq.shaded.com.google.protobuf.ByteString;
import org.apache.rocketmq.shaded.io.grpc.*;
import org.apache.rocketmq.shaded.io.grpc.stub.*;

/**
 * A load by RocketMQ 5's protocol: ADDRESS KIND SIZE SECONDS COUNT; prints messages per second as JSON.
 *
 * The protocol itself, over some connections: "batches" are sends of 32 messages, "singles" of one, "receives" take and
 * acknowledge 32 at a time. RocketMQ's Java client: "async" sends, and "push", whose consumer does nothing else. Those
 * that receive find COUNT messages. "idle": COUNT clients, a connection each, that do what clients do without messages,
 * from the line "ready" until the input ends.
 */
public class V2Load {
    static final int CONNECTIONS = 4, TOGETHER = 32, AT_ONCE = 256;
    static final Map<String, Integer> LOOPS = Map.of("batches", 16, "singles", 64, "receives", 16);
    static final Resource TOPIC = resource("bench"), GROUP = resource("bench");
    static final AtomicLong NUMBER = new AtomicLong(), DONE = new AtomicLong(), SETTLED = new AtomicLong();
    static final String RUN = Long.toHexString(System.nanoTime());
    static final List<MessagingServiceGrpc.MessagingServiceStub> STUBS = new ArrayList<>();
    static String address;
    static ByteString body;
    static MessageQueue queue;

    public static void main(String[] words) throws Exception {
        address = words[0];
        String kind = words[1];
        body = ByteString.copyFrom(new byte[Integer.parseInt(words[2])]);
        double seconds = Double.parseDouble(words[3]);
        long count = Long.parseLong(words[4]);
        for (int each = 0; each < CONNECTIONS; each++) connect("bench-" + RUN + "-" + each);
        queue = awaitRoute();
        if (kind.equals("idle")) idle((int) count);
        if (count > 0) fill(count);
        if (kind.equals("async")) sendAsync();
        else if (kind.equals("push")) push();
        else for (int each = 0; each < LOOPS.get(kind); each++) again(kind, STUBS.get(each % CONNECTIONS));
        rate(seconds); // warms up
        double found = rate(seconds);
        if (count > 0 && DONE.get() >= count) fail(new IllegalStateException("no message is left of " + count));
        System.out.println("{\"rate\": " + found + "}");
        Runtime.getRuntime().halt(0);
    }

    static double rate(double seconds) throws InterruptedException {
        long before = DONE.get(), began = System.nanoTime();
        Thread.sleep((long) (seconds * 1000));
        return (DONE.get() - before) / ((System.nanoTime() - began) / 1e9);
    }

    static void fail(Throwable error) {
        error.printStackTrace();
        System.err.flush();
        Runtime.getRuntime().halt(1);
    }

    static void check(Status status, Code... allowed) {
        if (status.getCode() != Code.OK && !List.of(allowed).contains(status.getCode()))
            fail(new IllegalStateException(status.toString()));
    }

    static Resource resource(String name) {
        return Resource.newBuilder().setName(name).build();
    }

    static org.apache.rocketmq.shaded.com.google.protobuf.Duration span(int seconds) {
        return org.apache.rocketmq.shaded.com.google.protobuf.Duration.newBuilder().setSeconds(seconds).build();
    }

    /** A connection whose client has told its settings, as a simple consumer's: RocketMQ gives messages to no other. */
    static void connect(String id) {
        Metadata told = new Metadata();
        for (String[] each : new String[][] {
            {"x-mq-client-id", id}, {"x-mq-language", "JAVA"}, {"x-mq-client-version", "5.2.0"}, {"x-mq-protocol", "v2"}
        }) told.put(Metadata.Key.of(each[0], Metadata.ASCII_STRING_MARSHALLER), each[1]);
        ManagedChannel channel = ManagedChannelBuilder.forTarget(address).usePlaintext().directExecutor()
            .maxInboundMessageSize(64 << 20).intercept(MetadataUtils.newAttachHeadersInterceptor(told)).build();
        MessagingServiceGrpc.MessagingServiceStub stub = MessagingServiceGrpc.newStub(channel);
        STUBS.add(stub);
        SubscriptionEntry entry = SubscriptionEntry.newBuilder().setTopic(TOPIC).setExpression(all()).build();
        Settings settings = Settings.newBuilder().setClientType(ClientType.SIMPLE_CONSUMER).setAccessPoint(endpoints())
            .setRequestTimeout(span(3)).setUserAgent(UA.newBuilder().setLanguage(Language.JAVA).setVersion("5.2.0"))
            .setSubscription(Subscription.newBuilder().setGroup(GROUP).addSubscriptions(entry)).build();
        stub.telemetry(new Answer<>(command -> SETTLED.incrementAndGet(), () -> {}))
            .onNext(TelemetryCommand.newBuilder().setSettings(settings).build());
    }

    static FilterExpression all() {
        return FilterExpression.newBuilder().setType(FilterType.TAG).setExpression("*").build();
    }

    static Endpoints endpoints() {
        String[] parts = address.split(":");
        return Endpoints.newBuilder().setScheme(AddressScheme.IPv4)
            .addAddresses(Address.newBuilder().setHost(parts[0]).setPort(Integer.parseInt(parts[1]))).build();
    }

    /** A queue of the topic; a server's broker is known to it a while after its port has opened. */
    static MessageQueue awaitRoute() throws Exception {
        QueryRouteRequest request = QueryRouteRequest.newBuilder().setTopic(TOPIC).setEndpoints(endpoints()).build();
        for (int tries = 0; tries < 600; tries++) {
            CompletableFuture<QueryRouteResponse> told = new CompletableFuture<>();
            timed(STUBS.get(0)).queryRoute(request, new Answer<>(told::complete, () -> {}));
            QueryRouteResponse answer = told.get();
            if (answer.getStatus().getCode() == Code.OK) return answer.getMessageQueues(0);
            Thread.sleep(200);
        }
        throw new IllegalStateException("no route");
    }

    static MessagingServiceGrpc.MessagingServiceStub timed(MessagingServiceGrpc.MessagingServiceStub stub) {
        return stub.withDeadlineAfter(30, TimeUnit.SECONDS);
    }

    /** Count what was done, and do the same again when the server has ended the call. */
    static void again(String kind, MessagingServiceGrpc.MessagingServiceStub stub) {
        if (kind.equals("receives")) receive(stub, () -> again(kind, stub));
        else send(stub, kind.equals("singles") ? 1 : TOGETHER, () -> again(kind, stub));
    }

    static void send(MessagingServiceGrpc.MessagingServiceStub stub, int count, Runnable then) {
        SendMessageRequest.Builder request = SendMessageRequest.newBuilder();
        for (int each = 0; each < count; each++) {
            SystemProperties properties = SystemProperties.newBuilder().setMessageId(RUN + NUMBER.incrementAndGet())
                .setMessageType(MessageType.NORMAL).setBodyEncoding(Encoding.IDENTITY).setBornHost("bench").build();
            request.addMessages(Message.newBuilder().setTopic(TOPIC).setBody(body).setSystemProperties(properties));
        }
        timed(stub).sendMessage(request.build(), new Answer<>(answer -> {
            check(answer.getStatus());
            DONE.addAndGet(count);
        }, then));
    }

    static void receive(MessagingServiceGrpc.MessagingServiceStub stub, Runnable then) {
        ReceiveMessageRequest request = ReceiveMessageRequest.newBuilder().setGroup(GROUP).setMessageQueue(anyQueue())
            .setFilterExpression(all()).setBatchSize(TOGETHER).setInvisibleDuration(span(60))
            .setLongPollingTimeout(span(5)).build();
        AckMessageRequest.Builder finished = AckMessageRequest.newBuilder().setGroup(GROUP).setTopic(TOPIC);
        timed(stub).receiveMessage(request, new Answer<>(answer -> {
            if (answer.hasStatus()) check(answer.getStatus(), Code.MESSAGE_NOT_FOUND);
            if (!answer.hasMessage()) return;
            SystemProperties found = answer.getMessage().getSystemProperties();
            finished.addEntries(AckMessageEntry.newBuilder().setMessageId(found.getMessageId())
                .setReceiptHandle(found.getReceiptHandle()));
        }, () -> {
            if (finished.getEntriesCount() == 0) then.run();
            else timed(stub).ackMessage(finished.build(), new Answer<>(answer -> {
                check(answer.getStatus());
                DONE.addAndGet(finished.getEntriesCount());
            }, then));
        }));
    }

    static MessageQueue anyQueue() {
        return MessageQueue.newBuilder(queue).setId(-1).build();
    }

    /** Send so many, behind the place where the group begins: it has been asked for messages before. */
    static void fill(long count) throws Exception {
        CountDownLatch begun = new CountDownLatch(1);
        receive(STUBS.get(0), begun::countDown);
        begun.await();
        AtomicLong left = new AtomicLong(count / TOGETHER);
        CountDownLatch filled = new CountDownLatch(LOOPS.get("batches"));
        for (int each = 0; each < LOOPS.get("batches"); each++) filling(STUBS.get(each % CONNECTIONS), left, filled);
        filled.await();
        DONE.set(0);
    }

    static void filling(MessagingServiceGrpc.MessagingServiceStub stub, AtomicLong left, CountDownLatch filled) {
        if (left.getAndDecrement() <= 0) filled.countDown();
        else send(stub, TOGETHER, () -> filling(stub, left, filled));
    }

    /** Heartbeats every 10 s and a look at the route every 30 s, evenly spread, as RocketMQ's clients have them. */
    static void idle(int count) throws Exception {
        while (STUBS.size() < count) connect("bench-" + RUN + "-" + STUBS.size());
        while (SETTLED.get() < count) Thread.sleep(50);
        HeartbeatRequest beat = HeartbeatRequest.newBuilder().setGroup(GROUP).setClientType(ClientType.SIMPLE_CONSUMER).build();
        QueryRouteRequest look = QueryRouteRequest.newBuilder().setTopic(TOPIC).setEndpoints(endpoints()).build();
        ScheduledExecutorService timer = Executors.newScheduledThreadPool(1);
        for (int each = 0; each < count; each++) {
            MessagingServiceGrpc.MessagingServiceStub stub = STUBS.get(each);
            timer.scheduleAtFixedRate(() -> timed(stub).heartbeat(beat, new Answer<>(answer -> check(answer.getStatus()), () -> {})),
                10_000L * each / count, 10_000, TimeUnit.MILLISECONDS);
            timer.scheduleAtFixedRate(() -> timed(stub).queryRoute(look, new Answer<>(answer -> check(answer.getStatus()), () -> {})),
                30_000L * each / count, 30_000, TimeUnit.MILLISECONDS);
        }
        System.out.println("ready");
        System.in.readAllBytes();
        Runtime.getRuntime().halt(0);
    }

    static ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(address).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
    }

    static void sendAsync() throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration()).setTopics("bench").build();
        Semaphore room = new Semaphore(AT_ONCE);
        byte[] content = body.toByteArray();
        Thread sender = new Thread(() -> {
            while (true) {
                room.acquireUninterruptibly();
                producer.sendAsync(provider.newMessageBuilder().setTopic("bench").setBody(content).build())
                    .whenComplete((receipt, error) -> {
                        if (error != null) fail(error);
                        DONE.incrementAndGet();
                        room.release();
                    });
            }
        });
        sender.setDaemon(true);
        sender.start();
    }

    static void push() throws Exception {
        ClientServiceProvider.loadService().newPushConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup("bench")
            .setSubscriptionExpressions(Map.of("bench", org.apache.rocketmq.client.apis.consumer.FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                DONE.incrementAndGet();
                return ConsumeResult.SUCCESS;
            }).build();
    }

    interface Taking<T> {
        void take(T answer);
    }

    /** What to do with each answer, and after the last one. */
    static class Answer<T> implements StreamObserver<T> {
        final Taking<T> taking;
        final Runnable then;

        Answer(Taking<T> taking, Runnable then) {
            this.taking = taking;
            this.then = then;
        }

        public void onNext(T answer) {
            taking.take(answer);
        }

        public void onError(Throwable error) {
            fail(error);
        }

        public void onCompleted() {
            then.run();
        }
    }
}
