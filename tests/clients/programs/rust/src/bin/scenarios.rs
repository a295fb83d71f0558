//! What programs do with RocketMQ's Rust client, which has simple consumers alone: scenarios HOST:PORT [tls]

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, LoggingFormat, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::FilterType::{self, Sql, Tag};
use rocketmq::model::common::{FilterExpression, SendReceipt};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(40);
/// At one of two brokers by turns: long waits at the one that has none would use up the patience.
const WAIT: Duration = Duration::from_secs(2);
const INVISIBLE: Duration = Duration::from_secs(10);

static RUN: LazyLock<String> = LazyLock::new(|| now().as_nanos().to_string());
static IS_ASKED: AtomicBool = AtomicBool::new(false);

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn is_tls() -> bool {
    env::args().count() > 2
}

fn check(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

fn client() -> ClientOption {
    let mut made = ClientOption::default();
    made.set_access_url(env::args().nth(1).expect("HOST:PORT"));
    made.set_enable_tls(is_tls());
    made.set_timeout(Duration::from_secs(10));
    made.set_long_polling_timeout(WAIT);
    made
}

fn sends_to(kinds: &[&str]) -> ProducerOption {
    let mut made = ProducerOption::default();
    made.set_topics(kinds.iter().map(|kind| format!("Clients{kind}")).collect());
    made.set_logging_format(LoggingFormat::Json);
    made
}

fn message(kind: &str, body: &str) -> MessageBuilder {
    MessageBuilder::builder()
        .set_topic(format!("Clients{kind}"))
        .set_tag("tag")
        .set_keys(vec![body.replace(' ', "-")])
        .set_properties(HashMap::from([("run", RUN.as_str())]))
        .set_body(format!("{} {body}", *RUN).into_bytes())
}

/// Receives until exactly these bodies were there, and gives them as they came. A group that is not orderly leaves the
/// first one without an acknowledgement: it comes a second time.
async fn receive(
    group: String,
    kind: &str,
    (by, expression): (FilterType, &str),
    wanted: &[String],
) -> Outcome<Vec<String>> {
    let topic = format!("Clients{kind}");
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(group.as_str());
    option.set_topics(vec![topic.as_str()]);
    option.set_logging_format(LoggingFormat::Json);
    let mut consumer = SimpleConsumer::new(option, client())?;
    consumer.start().await?;
    let (filter, ours) = (FilterExpression::new(by, expression), format!("{} ", *RUN));
    let (mut found, mut left) = (Vec::<String>::new(), None);
    let mut is_back = group == "ClientsOrderly";
    let deadline = Instant::now() + PATIENCE;
    while !is_back || !wanted.iter().all(|body| found.contains(body)) {
        let so_far = format!("{group}: {found:?} of {wanted:?}, given again: {is_back}");
        check(Instant::now() < deadline, so_far)?;
        for view in consumer.receive_with(&topic, &filter, 32, INVISIBLE).await? {
            if let Some(body) = std::str::from_utf8(view.body())?.strip_prefix(&ours) {
                if !is_back && left.is_none() {
                    left = Some(body.to_string());
                    continue;
                }
                is_back |= left.as_deref() == Some(body) && view.delivery_attempt() == 2;
                found.push(body.to_string());
            }
            consumer.ack(&view).await?;
        }
    }
    let there = BTreeSet::from_iter(&found);
    check(
        there == BTreeSet::from_iter(wanted) && found.len() == there.len(),
        format!("{group}: {found:?}"),
    )?;
    consumer.shutdown().await?;
    Ok(found)
}

async fn send(sender: &Producer, message: MessageBuilder) -> Outcome<SendReceipt> {
    let receipt = sender.send(message.build()?).await?;
    check(!receipt.message_id().is_empty(), "a message has no id")?;
    Ok(receipt)
}

async fn run() -> Outcome {
    std::fs::create_dir_all("logs")?; // which the client writes to
    let mut sender = Producer::new(sends_to(&["NORMAL", "FIFO", "DELAY"]), client())?;
    sender.start().await?;
    let mut normal: Vec<_> = (0..10).map(|n| format!("normal {n}")).collect();
    let fifo: Vec<_> = (0..10).map(|n| format!("fifo {n}")).collect();
    for (one, grouped) in normal.iter().zip(&fifo) {
        send(&sender, message("NORMAL", one)).await?;
        send(&sender, message("FIFO", grouped).set_message_group("group")).await?;
    }
    let dear = message("NORMAL", "dear").set_properties(HashMap::from([("run", RUN.as_str()), ("price", "7")]));
    let other = message("NORMAL", "other").set_tag("other");
    sender.batch_send(vec![dear.build()?, other.build()?]).await?;
    let due = (now() + Duration::from_secs(3)).as_secs();
    send(&sender, message("DELAY", "late").set_delivery_timestamp(due as i64)).await?;
    let refused = send(&sender, message("NORMAL", "wrong kind").set_message_group("group")).await;
    check(refused.is_err(), "a message of another type was taken")?;

    let answer = |_, _| {
        IS_ASKED.store(true, Ordering::Relaxed);
        TransactionResolution::COMMIT
    };
    let mut transactional = Producer::new_transaction_producer(sends_to(&["TRANSACTION"]), client(), Box::new(answer))?;
    transactional.start().await?;
    for body in ["committed", "rolled back", "asked about"] {
        let half = message("TRANSACTION", body).enable_transaction().build()?;
        let transaction = transactional.send_transaction_message(half).await?;
        match body {
            "committed" => transaction.commit().await?,
            "rolled back" => transaction.rollback().await?,
            _ => {}
        }
    }

    normal.push("dear".to_string());
    let all = [&normal[..], &["other".to_string()]].concat();
    let late = ["late".to_string()];
    let committed = ["committed", "asked about"].map(String::from);
    let sql = format!("price > 5 AND run = '{}'", *RUN);
    let group = |name: &str| format!("rust-{name}-{}", *RUN);
    let (_, _, _, _, _, _, in_order) = tokio::try_join!(
        receive(group("all"), "NORMAL", (Tag, "*"), &all),
        receive(group("tag"), "NORMAL", (Tag, "tag"), &normal),
        receive(group("sql"), "NORMAL", (Sql, &sql), &normal[10..]),
        receive(group("tags"), "FIFO", (Tag, "tag || more"), &fifo),
        receive(group("late"), "DELAY", (Tag, "*"), &late),
        receive(group("ended"), "TRANSACTION", (Tag, "*"), &committed),
        receive("ClientsOrderly".into(), "FIFO", (Tag, "*"), &fifo),
    )?;
    check(in_order == fifo, format!("not in order: {in_order:?}"))?;
    check(now().as_secs() >= due, "what was for later came too early")?;
    check(IS_ASKED.load(Ordering::Relaxed), "the producer was not asked")?;
    sender.shutdown().await?;
    transactional.shutdown().await?;
    println!("rust: ok{}", if is_tls() { " over TLS" } else { "" });
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    if let Err(error) = run().await {
        eprintln!("rust: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
