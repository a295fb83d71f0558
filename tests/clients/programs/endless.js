// Sends and receives with RocketMQ's Node.js client until its input ends: endless.js HOST:PORT; see endless.py
'use strict';
const fs = require('node:fs');
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, TransactionResolution } = require('rocketmq-client-nodejs');

const options = { endpoints: process.argv[2], namespace: '', requestTimeout: 5000 };
const pause = () => new Promise(resolve => setTimeout(resolve, 50));
const tell = text => fs.writeSync(1, `${text}\n`);
const isCommitted = body => Number(body.toString().split(' ')[2]) % 2 === 0;
let isOver = false;

async function push(consumerGroup, topic) {
  const consumer = new PushConsumer({
    ...options,
    consumerGroup,
    subscriptions: new Map([[ topic, '*' ]]),
    messageListener: {
      async consume(message) {
        tell(`got ${message.body}`);
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
}

async function sendAll(kind, more, send) {
  for (let number = 0; !isOver; number++) {
    try {
      await send({ topic: `Clients${kind}`, tag: 'tag', body: Buffer.from(`node ${kind} ${number}`), ...more });
      tell(`sent ${kind} ${number}`);
    } catch (error) {
      tell(`failed ${kind} ${number}: ${error}`);
    }
    await pause();
  }
}

async function receiveAll(consumer) {
  for (;;) {
    try {
      for (const each of await consumer.receive(16)) {
        tell(`got ${each.body}`);
        await consumer.ack(each);
      }
    } catch (error) {
      tell(`failed simple: ${error}`);
      await pause();
    }
  }
}

async function main() {
  await push('node-orderly', 'ClientsFIFO');
  await push('node-push', 'ClientsTRANSACTION');
  const simple = new SimpleConsumer({
    ...options, consumerGroup: 'node-simple', subscriptions: new Map([[ 'ClientsNORMAL', '*' ]]), awaitDuration: 5000,
  });
  await simple.startup();
  receiveAll(simple);
  const producer = new Producer(options);
  await producer.startup();
  const transactional = new Producer({
    ...options,
    topic: 'ClientsTRANSACTION',
    checker: {
      check: async view => (isCommitted(view.body) ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK),
    },
  });
  await transactional.startup();
  const execute = async message => {
    const transaction = transactional.beginTransaction();
    await transactional.send(message, transaction);
    await (isCommitted(message.body) ? transaction.commit() : transaction.rollback());
  };
  const sending = [
    sendAll('NORMAL', {}, message => producer.send(message)),
    sendAll('FIFO', { messageGroup: 'node' }, message => producer.send(message)),
    sendAll('TRANSACTION', {}, execute),
  ];
  process.stdin.resume().on('end', async () => {
    isOver = true;
    await Promise.all(sending);
    tell('idle');
  });
}

main().catch(error => {
  console.error('node:', error);
  process.exit(1);
});
