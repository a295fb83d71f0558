// Sends and receives with RocketMQ's Java client until its input ends: Endless HOST:PORT; see endless.py

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Endless {
    interface Sending {
        void send(Message message, int number) throws Exception;
    }

    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final long PAUSE_MS = 50;
    static ClientConfiguration configuration;
    static volatile boolean isOver;

    static synchronized void tell(String text) {
        System.out.println(text);
        System.out.flush();
    }

    static String bodyOf(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static boolean isCommitted(int number) {
        return number % 2 == 0;
    }

    static PushConsumer push(String group, String topic) throws ClientException {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                tell("got " + bodyOf(view));
                return ConsumeResult.SUCCESS;
            }).build();
    }

    static Thread sendAll(String kind, Sending sending) {
        Thread thread = new Thread(() -> {
            for (int number = 0; !isOver; number++) {
                MessageBuilder made = PROVIDER.newMessageBuilder().setTopic("Clients" + kind)
                    .setBody(("java " + kind + " " + number).getBytes(StandardCharsets.UTF_8));
                if (kind.equals("FIFO")) {
                    made.setMessageGroup("java");
                }
                try {
                    sending.send(made.build(), number);
                    tell("sent " + kind + " " + number);
                    Thread.sleep(PAUSE_MS);
                } catch (Exception error) {
                    tell("failed " + kind + " " + number + ": " + error.toString().replace('\n', ' '));
                }
            }
        });
        thread.start();
        return thread;
    }

    static void receiveAll(SimpleConsumer consumer) {
        while (true) {
            try {
                for (MessageView each : consumer.receive(16, Duration.ofSeconds(10))) {
                    tell("got " + bodyOf(each));
                    consumer.ack(each);
                }
            } catch (ClientException error) {
                tell("failed simple: " + error.toString().replace('\n', ' '));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(5)).build();
        push("java-orderly", "ClientsFIFO");
        push("java-push", "ClientsTRANSACTION");
        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("java-simple").setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of("ClientsNORMAL", FilterExpression.SUB_ALL)).build();
        Thread receiving = new Thread(() -> receiveAll(simple));
        receiving.setDaemon(true);
        receiving.start();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("ClientsNORMAL", "ClientsFIFO").build();
        Producer transactional = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("ClientsTRANSACTION").setTransactionChecker(view ->
                isCommitted(Integer.parseInt(bodyOf(view).split(" ")[2]))
                    ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK)
            .build();
        List<Thread> sending = new ArrayList<>();
        sending.add(sendAll("NORMAL", (message, number) -> producer.send(message)));
        sending.add(sendAll("FIFO", (message, number) -> producer.send(message)));
        sending.add(sendAll("TRANSACTION", (message, number) -> {
            Transaction transaction = transactional.beginTransaction();
            transactional.send(message, transaction);
            if (isCommitted(number)) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
        }));
        System.in.readAllBytes();
        isOver = true;
        for (Thread each : sending) {
            each.join();
        }
        tell("idle");
        Thread.currentThread().join();
    }
}
