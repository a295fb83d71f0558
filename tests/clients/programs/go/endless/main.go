// Sends and receives with RocketMQ's Go client until its input ends: endless HOST:PORT; see endless.py
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const pause = 50 * time.Millisecond

var (
	isOver  atomic.Bool
	telling sync.Mutex
)

func tell(text string, more ...any) {
	telling.Lock()
	defer telling.Unlock()
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(text, more...), "\n", " "))
}

func must(err error) {
	if err != nil {
		tell("go: %v", err)
		os.Exit(1)
	}
}

func isCommitted(body []byte) bool {
	number, err := strconv.Atoi(strings.Fields(string(body))[2])
	must(err)
	return number%2 == 0
}

func configuration(group string) *rmq.Config {
	return &rmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func push(group, topic string) {
	consumer, err := rmq.NewPushConsumer(configuration(group),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
			tell("got %s", view.GetBody())
			return rmq.SUCCESS
		}}))
	must(err)
	must(consumer.Start())
}

func sendAll(sending *sync.WaitGroup, kind string, send func(*rmq.Message) error) {
	defer sending.Done()
	for number := 0; !isOver.Load(); number++ {
		message := &rmq.Message{Topic: "Clients" + kind, Body: []byte(fmt.Sprintf("go %s %d", kind, number))}
		if kind == "FIFO" {
			message.SetMessageGroup("go")
		}
		if err := send(message); err != nil {
			tell("failed %s %d: %v", kind, number, err)
		} else {
			tell("sent %s %d", kind, number)
		}
		time.Sleep(pause)
	}
}

func receiveAll(consumer rmq.SimpleConsumer) {
	for {
		views, err := consumer.Receive(context.TODO(), 16, 10*time.Second)
		for _, view := range views {
			tell("got %s", view.GetBody())
			if err := consumer.Ack(context.TODO(), view); err != nil {
				tell("failed simple: %v", err)
			}
		}
		if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
			tell("failed simple: %v", err)
			time.Sleep(pause)
		}
	}
}

func producer(topics []string, options ...rmq.ProducerOption) rmq.Producer {
	made, err := rmq.NewProducer(configuration(""), append(options, rmq.WithTopics(topics...))...)
	must(err)
	must(made.Start())
	return made
}

func main() {
	rmq.EnableSsl = false
	rmq.ResetLogger()
	push("go-orderly", "ClientsFIFO")
	push("go-push", "ClientsTRANSACTION")
	simple, err := rmq.NewSimpleConsumer(configuration("go-simple"),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{"ClientsNORMAL": rmq.SUB_ALL}))
	must(err)
	must(simple.Start())
	go receiveAll(simple)
	sender := producer([]string{"ClientsNORMAL", "ClientsFIFO"})
	checker := &rmq.TransactionChecker{Check: func(view *rmq.MessageView) rmq.TransactionResolution {
		if isCommitted(view.GetBody()) {
			return rmq.COMMIT
		}
		return rmq.ROLLBACK
	}}
	transactional := producer([]string{"ClientsTRANSACTION"}, rmq.WithTransactionChecker(checker))
	send := func(message *rmq.Message) error {
		_, err := sender.Send(context.TODO(), message)
		return err
	}
	execute := func(message *rmq.Message) error {
		transaction := transactional.BeginTransaction()
		if _, err := transactional.SendWithTransaction(context.TODO(), message, transaction); err != nil {
			return err
		}
		if isCommitted(message.Body) {
			return transaction.Commit()
		}
		return transaction.RollBack()
	}
	var sending sync.WaitGroup
	sending.Add(3)
	go sendAll(&sending, "NORMAL", send)
	go sendAll(&sending, "FIFO", send)
	go sendAll(&sending, "TRANSACTION", execute)
	_, err = io.ReadAll(os.Stdin)
	must(err)
	isOver.Store(true)
	sending.Wait()
	tell("idle")
	select {}
}
