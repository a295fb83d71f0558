// What programs do with RocketMQ's Node.js client: scenarios.js HOST:PORT [tls]
'use strict';
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = require('rocketmq-client-nodejs');

const [endpoints, tls] = process.argv.slice(2);
const run = `${Date.now()}`;
const options = { endpoints, namespace: '', sslEnabled: tls === 'tls', requestTimeout: 10000 };
const patienceMs = 40000;

async function wait(condition, what) {
  const deadline = Date.now() + patienceMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`no ${what} within ${patienceMs} ms`);
    await new Promise(resolve => setTimeout(resolve, 50));
  }
}

async function main() {
  const producer = new Producer(options);
  await producer.startup();
  const found = new Set();
  const kinds = [ 'NORMAL', 'FIFO', 'DELAY', 'TRANSACTION' ];
  const push = new PushConsumer({
    ...options,
    consumerGroup: `node-push-${run}`,
    subscriptions: new Map(kinds.map(kind => [ `Clients${kind}`, '*' ])),
    messageListener: {
      async consume(message) {
        const [ of, ...body ] = message.body.toString().split(' ');
        if (of === run) found.add(body.join(' '));
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await push.startup();
  const message = (kind, body, more) => ({
    topic: `Clients${kind}`, tag: 'tag', keys: [ body ], body: Buffer.from(`${run} ${body}`), ...more,
  });
  const expected = [ 'late', 'committed' ];
  for (let n = 0; n < 10; n++) {
    await producer.send(message('NORMAL', `normal ${n}`));
    await producer.send(message('FIFO', `fifo ${n}`, { messageGroup: 'group' }));
    expected.push(`normal ${n}`, `fifo ${n}`);
  }
  await producer.send(message('DELAY', 'late', { delay: 2000 }));
  const due = await producer.send(message('DELAY', 'recalled', { delay: 8000 }));
  await producer.recallMessage('ClientsDELAY', due.recallHandle);
  const transactional = new Producer({ ...options, topic: 'ClientsTRANSACTION', checker: { check: async () => 1 } });
  await transactional.startup();
  for (const end of [ 'commit', 'rollback' ]) {
    const transaction = transactional.beginTransaction();
    await transactional.send(message('TRANSACTION', end === 'commit' ? 'committed' : 'rolled back'), transaction);
    await transaction[end]();
  }
  await wait(() => expected.every(body => found.has(body)), `${expected.filter(body => !found.has(body))}`);
  if (found.has('recalled') || found.has('rolled back')) throw new Error('received what was taken back');
  const simple = new SimpleConsumer({
    ...options,
    consumerGroup: `node-simple-${run}`,
    subscriptions: new Map([[ 'ClientsNORMAL', 'tag' ]]),
    awaitDuration: 5000,
  });
  await simple.startup();
  const received = new Set();
  await wait(async () => {
    for (const each of await simple.receive(20)) {
      received.add(each.body.toString());
      await simple.ack(each);
    }
    return [ ...received ].filter(body => body.startsWith(`${run} normal`)).length >= 10;
  }, 'messages of the simple consumer');
  for (const each of [ simple, push, producer, transactional ]) await each.shutdown();
  console.log(`node: ok${tls ? ' over TLS' : ''}`);
}

main().then(() => process.exit(0), error => {
  console.error('node:', error);
  process.exit(1);
});
