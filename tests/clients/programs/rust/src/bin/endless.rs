//! Sends and receives with RocketMQ's Rust client until its input ends: endless HOST:PORT; see endless.py
//! It has no push consumers: simple ones receive all kinds.

use std::env;
use std::error::Error;
use std::fmt::Display;
use std::io::Read;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rocketmq::conf::{ClientOption, LoggingFormat, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use tokio::time::sleep;

const PAUSE: Duration = Duration::from_millis(50);

static IS_OVER: AtomicBool = AtomicBool::new(false);

fn failed(what: impl Display, error: impl Display) {
    println!("failed {what}: {}", error.to_string().replace('\n', " "));
}

fn is_committed(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let number: u64 = text.rsplit(' ').next().unwrap().parse().unwrap();
    number % 2 == 0
}

fn client() -> ClientOption {
    let mut made = ClientOption::default();
    made.set_access_url(env::args().nth(1).expect("HOST:PORT"));
    made.set_timeout(Duration::from_secs(5));
    made.set_long_polling_timeout(Duration::from_secs(5));
    made
}

fn sends_to(topics: &[&str]) -> ProducerOption {
    let mut made = ProducerOption::default();
    made.set_topics(topics.to_vec());
    made.set_logging_format(LoggingFormat::Json);
    made
}

async fn consumer(group: &str, topic: &str) -> Result<SimpleConsumer, ClientError> {
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(group);
    option.set_topics(vec![topic]);
    option.set_logging_format(LoggingFormat::Json);
    let mut made = SimpleConsumer::new(option, client())?;
    made.start().await?;
    Ok(made)
}

async fn receive_all(consumer: SimpleConsumer, topic: &str) {
    let everything = FilterExpression::new(FilterType::Tag, "*");
    loop {
        match consumer
            .receive_with(topic, &everything, 16, Duration::from_secs(10))
            .await
        {
            Ok(views) => {
                for view in views {
                    println!("got {}", String::from_utf8_lossy(view.body()));
                    if let Err(error) = consumer.ack(&view).await {
                        failed("ack", error);
                    }
                }
            }
            Err(error) => {
                failed("simple", error);
                sleep(PAUSE).await;
            }
        }
    }
}

async fn send(producer: &Producer, kind: &str, number: u64) -> Result<(), ClientError> {
    let body = format!("rust {kind} {number}").into_bytes();
    let message = MessageBuilder::builder()
        .set_topic(format!("Clients{kind}"))
        .set_body(body.clone());
    match kind {
        "TRANSACTION" => {
            let half = message.enable_transaction().build()?;
            let transaction = producer.send_transaction_message(half).await?;
            if is_committed(&body) {
                transaction.commit().await
            } else {
                transaction.rollback().await
            }
        }
        "FIFO" => producer
            .send(message.set_message_group("rust").build()?)
            .await
            .map(drop),
        _ => producer.send(message.build()?).await.map(drop),
    }
}

async fn send_all(producer: &Producer, kind: &str) {
    for number in 0.. {
        if IS_OVER.load(Ordering::Relaxed) {
            return;
        }
        match send(producer, kind, number).await {
            Ok(()) => println!("sent {kind} {number}"),
            Err(error) => failed(format!("{kind} {number}"), error),
        }
        sleep(PAUSE).await;
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all("logs")?; // which the client writes to
    for (group, topic) in [
        ("rust-orderly", "ClientsFIFO"),
        ("rust-push", "ClientsTRANSACTION"),
        ("rust-simple", "ClientsNORMAL"),
    ] {
        tokio::spawn(receive_all(consumer(group, topic).await?, topic));
    }
    let mut sender = Producer::new(sends_to(&["ClientsNORMAL", "ClientsFIFO"]), client())?;
    sender.start().await?;
    let mut transactional = Producer::new_transaction_producer(
        sends_to(&["ClientsTRANSACTION"]),
        client(),
        Box::new(|_, view| {
            if is_committed(view.body()) {
                TransactionResolution::COMMIT
            } else {
                TransactionResolution::ROLLBACK
            }
        }),
    )?;
    transactional.start().await?;
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        IS_OVER.store(true, Ordering::Relaxed);
    });
    tokio::join!(
        send_all(&sender, "NORMAL"),
        send_all(&sender, "FIFO"),
        send_all(&transactional, "TRANSACTION"),
    );
    println!("idle");
    std::future::pending().await
}

#[tokio::main]
async fn main() -> ExitCode {
    if let Err(error) = run().await {
        println!("rust: {error}");
    }
    ExitCode::FAILURE // it never ends otherwise
}
