// What programs do with RocketMQ's Java client: Scenarios HOST:PORT [tls]

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Scenarios {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final String RUN = String.valueOf(System.nanoTime());
    static final long PATIENCE_MS = 40_000;
    static ClientConfiguration configuration;

    static MessageBuilder message(String kind, String body) {
        return PROVIDER.newMessageBuilder().setTopic("Clients" + kind).setTag("tag").setKeys(body.replace(' ', '-'))
            .addProperty("run", RUN).setBody((RUN + " " + body).getBytes(StandardCharsets.UTF_8));
    }

    /** The body, or null if another run has sent it. */
    static String bodyOf(MessageView view) {
        String text = StandardCharsets.UTF_8.decode(view.getBody()).toString();
        return text.startsWith(RUN + " ") ? text.substring(RUN.length() + 1) : null;
    }

    static void await(Callable<Boolean> condition, Callable<String> what) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.call()) {
            check(System.currentTimeMillis() < deadline, what.call() + " within " + PATIENCE_MS + " ms");
            Thread.sleep(50);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    /** Receive until exactly these bodies were there; the first one is given back once, and comes a second time. */
    static void simple(String kind, FilterExpression filter, Set<String> expected) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("java-simple-" + kind + "-" + filter.getExpression().length() + "-" + RUN)
            .setSubscriptionExpressions(Map.of("Clients" + kind, filter)).setAwaitDuration(Duration.ofSeconds(5)).build();
        Set<String> found = new TreeSet<>();
        AtomicBoolean isGivenBack = new AtomicBoolean();
        AtomicBoolean isBack = new AtomicBoolean();
        await(() -> {
            for (MessageView each : consumer.receive(32, Duration.ofSeconds(15))) {
                String body = bodyOf(each);
                if (body != null && isGivenBack.compareAndSet(false, true)) {
                    consumer.changeInvisibleDuration(each, Duration.ofSeconds(1));
                    continue;
                }
                if (body != null) {
                    found.add(body);
                }
                isBack.compareAndSet(false, each.getDeliveryAttempt() == 2);
                consumer.ack(each);
            }
            return found.containsAll(expected) && isBack.get();
        }, () -> "not all of " + expected + " of " + kind + ", only " + found + ", given back: " + isBack);
        check(found.equals(expected), "the simple consumer of " + filter.getExpression() + " received " + found);
        consumer.close();
    }

    public static void main(String[] arguments) throws Exception {
        boolean isTls = arguments.length > 1;
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(isTls)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        Set<String> found = ConcurrentHashMap.newKeySet();
        List<String> inOrder = new CopyOnWriteArrayList<>();
        List<Integer> attempts = new CopyOnWriteArrayList<>();
        PushConsumer push = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("java-push-" + RUN)
            .setSubscriptionExpressions(List.of("NORMAL", "FIFO", "DELAY", "TRANSACTION").stream()
                .collect(Collectors.toMap(kind -> "Clients" + kind, kind -> FilterExpression.SUB_ALL)))
            .setMessageListener(view -> {
                String body = bodyOf(view);
                if ("again".equals(body)) {
                    attempts.add(view.getDeliveryAttempt());
                    if (view.getDeliveryAttempt() == 1) {
                        return ConsumeResult.FAILURE;
                    }
                }
                if (body != null) {
                    found.add(body);
                }
                return ConsumeResult.SUCCESS;
            }).build();
        PushConsumer orderly = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("ClientsOrderly")
            .setSubscriptionExpressions(Map.of("ClientsFIFO", FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                String body = bodyOf(view);
                if (body != null) {
                    inOrder.add(body);
                }
                return ConsumeResult.SUCCESS;
            }).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("ClientsNORMAL", "ClientsFIFO", "ClientsDELAY").build();
        Set<String> normal = new TreeSet<>();
        Set<String> fifo = new TreeSet<>();
        for (int n = 0; n < 10; n++) {
            check(!producer.send(message("NORMAL", "normal " + n).build()).getMessageId().toString().isEmpty(), "an id");
            producer.send(message("FIFO", "fifo " + n).setMessageGroup("group").build());
            normal.add("normal " + n);
            fifo.add("fifo " + n);
        }
        producer.send(message("NORMAL", "again").addProperty("price", "7").build());
        producer.sendAsync(message("NORMAL", "async").setTag("other").build()).get();
        long now = System.currentTimeMillis();
        SendReceipt due = producer.send(message("DELAY", "recalled").setDeliveryTimestamp(now + 8000).build());
        producer.send(message("DELAY", "late").setDeliveryTimestamp(now + 2000).build());
        producer.recallMessage("ClientsDELAY", due.getRecallHandle());
        AtomicBoolean isAsked = new AtomicBoolean();
        Producer transactional = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("ClientsTRANSACTION").setTransactionChecker(view -> {
                isAsked.set(true);
                return TransactionResolution.COMMIT;
            }).build();
        for (String body : List.of("committed", "rolled back", "asked about")) {
            Transaction transaction = transactional.beginTransaction();
            transactional.send(message("TRANSACTION", body).build(), transaction);
            if (body.equals("committed")) {
                transaction.commit();
            } else if (body.equals("rolled back")) {
                transaction.rollback();
            }
        }
        try {
            producer.send(message("NORMAL", "wrong kind").setMessageGroup("group").build());
            throw new IllegalStateException("a message of another type was taken");
        } catch (ClientException expected) {
            check(expected.getMessage().contains("not match") || expected.getMessage().contains("type"), expected.toString());
        } catch (IllegalArgumentException expected) {
            // The client has looked itself: it knows the types that a topic takes.
        }
        Set<String> expected = new TreeSet<>(Set.of("again", "async", "late", "committed", "asked about"));
        expected.addAll(normal);
        expected.addAll(fifo);
        await(() -> found.containsAll(expected), () -> "not all of " + expected + ", only " + new TreeSet<>(found));
        check(found.size() == expected.size(), "received what was taken back: " + new TreeSet<>(found));
        check(isAsked.get(), "the producer was asked about its transaction");
        check(attempts.equals(List.of(1, 2)), "attempts " + attempts);
        await(() -> inOrder.size() >= 10, () -> "not all in order, only " + inOrder);
        check(inOrder.equals(List.copyOf(fifo)), "not in order: " + inOrder);
        Set<String> tagged = new TreeSet<>(normal);
        tagged.add("again");
        simple("NORMAL", new FilterExpression("tag"), tagged);
        simple("NORMAL", new FilterExpression("price > 5 AND run = '" + RUN + "'", FilterExpressionType.SQL92), Set.of("again"));
        simple("FIFO", new FilterExpression("tag || more"), fifo);
        for (AutoCloseable each : List.of(push, orderly, producer, transactional)) {
            each.close();
        }
        System.out.println("java: ok" + (isTls ? " over TLS" : ""));
        System.exit(0);
    }
}
