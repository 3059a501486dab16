import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * One JVM that plays every RocketMQ client a test needs, told what to do on standard input: a line of tab-separated words
 * each, answered by one line "ok TAB text" or "error TAB text" in which newlines and backslashes are escaped.
 */
public class Driver {
    private static final PrintStream ANSWERS = System.out;
    private static final Map<String, Sender> SENDERS = new ConcurrentHashMap<>();
    private static final Map<String, Looker> LOOKERS = new ConcurrentHashMap<>();
    private static final Map<String, Receiver> RECEIVERS = new ConcurrentHashMap<>();
    private static final AtomicLong INSTANCES = new AtomicLong();

    public static void main(String[] ignored) throws Exception {
        System.setOut(System.err);
        hastenGoodbyes(Thread.currentThread());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok\t" + escape(perform(line.split("\t", -1)));
            } catch (Throwable error) {
                answer = "error\t" + escape(String.valueOf(error));
            }
            ANSWERS.println(answer);
            ANSWERS.flush();
        }
        System.exit(0);
    }

    /**
     * A 5.x client that shuts down joins a thread of its own which waits up to 3 s for the next connection event. That thread
     * survives an interruption and looks whether it is to end, so each goodbye takes a moment instead.
     */
    private static void hastenGoodbyes(Thread main) {
        Thread hasty = new Thread(() -> {
            while (true) {
                for (StackTraceElement frame : main.getStackTrace()) {
                    if (frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown")) {
                        Thread.getAllStackTraces().keySet().stream()
                            .filter(thread -> thread.getName().startsWith("NettyEventExecutor")).forEach(Thread::interrupt);
                        break;
                    }
                }
                LockSupport.parkNanos(50_000_000);
            }
        });
        hasty.setDaemon(true);
        hasty.start();
    }

    private static String escape(String text) {
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r");
    }

    private static String perform(String[] words) throws Exception {
        String[] rest = Arrays.copyOfRange(words, 1, words.length);
        switch (words[0]) {
            case "admin":
                return admin(rest);
            case "send": // NAMESERVERS TOPIC COUNT PREFIX
                return send(rest[0], rest[1], Integer.parseInt(rest[2]), rest[3]);
            case "sender-start": // NAME NAMESERVERS TOPIC PAUSE_MS
                SENDERS.put(rest[0], new Sender(rest[1], rest[2], Integer.parseInt(rest[3])));
                return "";
            case "sender-state":
                return SENDERS.get(rest[0]).state();
            case "sender-stop":
                return SENDERS.remove(rest[0]).finish();
            case "looker-start": // NAME NAMESERVERS TOPIC PAUSE_MS TIMEOUT_MS
                LOOKERS.put(rest[0], new Looker(rest[1], rest[2], Integer.parseInt(rest[3]), Long.parseLong(rest[4])));
                return "";
            case "looker-state":
                return LOOKERS.get(rest[0]).state();
            case "looker-forget":
                return LOOKERS.get(rest[0]).forget();
            case "looker-stop":
                LOOKERS.remove(rest[0]).finish();
                return "";
            case "receiver-start": // NAME NAMESERVERS GROUP TOPIC
                RECEIVERS.put(rest[0], new Receiver(rest[1], rest[2], rest[3]));
                return "";
            case "receiver-count":
                return String.valueOf(RECEIVERS.get(rest[0]).bodies.size());
            case "receiver-hosts":
                return String.join(",", RECEIVERS.get(rest[0]).hosts);
            case "receiver-stop":
                RECEIVERS.remove(rest[0]).consumer.shutdown();
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static synchronized String admin(String[] arguments) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(out, true);
        PrintStream before = System.out;
        System.setOut(capture);
        try {
            MQAdminStartup.main0(arguments, null);
        } finally {
            System.setOut(before);
        }
        return new String(out.toByteArray(), StandardCharsets.UTF_8);
    }

    /** Signs requests, if the system property interop.accessKey is set. */
    private static RPCHook signing() {
        String key = System.getProperty("interop.accessKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, System.getProperty("interop.secretKey")));
    }

    private static DefaultMQProducer producer(String nameServers) throws Exception {
        long n = INSTANCES.incrementAndGet();
        DefaultMQProducer producer = new DefaultMQProducer("interop_producer_" + n, signing());
        producer.setInstanceName("interop_p_" + n);
        if (!nameServers.isEmpty()) {
            producer.setNamesrvAddr(nameServers);
        }
        producer.setRetryTimesWhenSendFailed(2);
        producer.start();
        return producer;
    }

    private static String send(String nameServers, String topic, int count, String prefix) throws Exception {
        DefaultMQProducer producer = producer(nameServers);
        int stored = 0;
        Map<String, Integer> statuses = new TreeMap<>();
        Map<String, Integer> brokers = new TreeMap<>();
        List<String> errors = new ArrayList<>();
        try {
            for (int i = 0; i < count; i++) {
                try {
                    SendResult result = producer.send(new Message(topic, (prefix + i).getBytes(StandardCharsets.UTF_8)), 10000);
                    statuses.merge(result.getSendStatus().name(), 1, Integer::sum);
                    brokers.merge(result.getMessageQueue().getBrokerName(), 1, Integer::sum);
                    stored++;
                } catch (Exception error) {
                    errors.add(String.valueOf(error));
                }
            }
        } finally {
            producer.shutdown();
        }
        return stored + " stored; " + statuses + "; " + brokers + "; " + errors;
    }

    /** Sends all the time and counts what fails, with the longest time between two messages that were stored. */
    private static class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final String topic;
        private final int pauseMs;
        private volatile boolean stopped;
        private volatile long sent;
        private volatile long failed;
        private volatile long longestGapMs;
        private volatile String lastError = "";
        private volatile String lastBroker = "";

        Sender(String nameServers, String topic, int pauseMs) throws Exception {
            this.producer = producer(nameServers);
            this.topic = topic;
            this.pauseMs = pauseMs;
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            long last = System.nanoTime();
            while (!stopped) {
                try {
                    SendResult result = producer.send(new Message(topic, ("continuous " + sent).getBytes(StandardCharsets.UTF_8)), 5000);
                    sent++;
                    lastBroker = result.getMessageQueue().getBrokerName();
                    long now = System.nanoTime();
                    longestGapMs = Math.max(longestGapMs, (now - last) / 1000000);
                    last = now;
                    Thread.sleep(pauseMs);
                } catch (Exception error) {
                    failed++;
                    lastError = String.valueOf(error);
                }
            }
        }

        String state() {
            return "{\"sent\":" + sent + ",\"failed\":" + failed + ",\"longest_gap_ms\":" + longestGapMs + ",\"last_broker\":\""
                + lastBroker + "\",\"last_error\":\"" + lastError.replaceAll("[\"\\\\\\s]", " ") + "\"}";
        }

        String finish() throws InterruptedException {
            stopped = true;
            join(20000);
            producer.shutdown();
            return state();
        }
    }

    /** Looks up one topic all the time over a client's connections, which move on as RocketMQ's do. */
    private static class Looker extends Thread {
        private final DefaultMQAdminExt client;
        private final String topic;
        private final int pauseMs;
        private volatile boolean stopped;
        private long answered;
        private long failed;
        private long longestGapMs;
        private long last = System.nanoTime();
        private String lastError = "";

        Looker(String nameServers, String topic, int pauseMs, long timeoutMs) throws Exception {
            this.client = new DefaultMQAdminExt(timeoutMs);
            this.topic = topic;
            this.pauseMs = pauseMs;
            client.setInstanceName("interop_l_" + INSTANCES.incrementAndGet());
            client.setNamesrvAddr(nameServers);
            client.start();
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            while (!stopped) {
                try {
                    client.examineTopicRouteInfo(topic);
                    note(null);
                    Thread.sleep(pauseMs);
                } catch (Exception error) {
                    note(error);
                }
            }
        }

        private synchronized void note(Exception error) {
            if (error != null) {
                failed++;
                lastError = String.valueOf(error);
                return;
            }
            answered++;
            long now = System.nanoTime();
            longestGapMs = Math.max(longestGapMs, (now - last) / 1000000);
            last = now;
        }

        synchronized String state() {
            long gapMs = Math.max(longestGapMs, (System.nanoTime() - last) / 1000000);
            return "{\"answered\":" + answered + ",\"failed\":" + failed + ",\"longest_gap_ms\":" + gapMs + ",\"last_error\":\""
                + lastError.replaceAll("[\"\\\\\\s]", " ") + "\"}";
        }

        synchronized String forget() {
            longestGapMs = 0;
            return "";
        }

        void finish() throws InterruptedException {
            stopped = true;
            join(20000);
            client.shutdown();
        }
    }

    private static class Receiver {
        final DefaultMQPushConsumer consumer;
        final Set<String> bodies = ConcurrentHashMap.newKeySet();
        final Set<String> hosts = ConcurrentHashMap.newKeySet();

        Receiver(String nameServers, String group, String topic) throws Exception {
            consumer = new DefaultMQPushConsumer(group, signing(), new AllocateMessageQueueAveragely());
            consumer.setInstanceName("interop_c_" + INSTANCES.incrementAndGet());
            if (!nameServers.isEmpty()) {
                consumer.setNamesrvAddr(nameServers);
            }
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                    hosts.add(String.valueOf(message.getStoreHost()));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
    }
}
