// What programs do with RocketMQ's Go client: scenarios HOST:PORT [tls]
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const patience = 40 * time.Second

var run = fmt.Sprint(time.Now().UnixNano())

// Bodies is what has been received; push consumers call from many goroutines.
type Bodies struct {
	sync.Mutex
	found []string
}

func (bodies *Bodies) add(view *rmq.MessageView) string {
	bodies.Lock()
	defer bodies.Unlock()
	body, isOurs := strings.CutPrefix(string(view.GetBody()), run+" ")
	if !isOurs {
		return ""
	}
	bodies.found = append(bodies.found, body)
	return body
}

func (bodies *Bodies) has(wanted []string) bool {
	bodies.Lock()
	defer bodies.Unlock()
	there := map[string]bool{}
	for _, body := range bodies.found {
		there[body] = true
	}
	for _, body := range wanted {
		if !there[body] {
			return false
		}
	}
	return true
}

func check(holds bool, what string, more ...any) {
	if !holds {
		fmt.Println("go:", fmt.Sprintf(what, more...))
		os.Exit(1)
	}
}

func must(err error, what string) {
	check(err == nil, "%s: %v", what, err)
}

func wait(condition func() bool, what string, more func() any) {
	deadline := time.Now().Add(patience)
	for !condition() {
		check(time.Now().Before(deadline), "%s within %s: %v", what, patience, more())
		time.Sleep(50 * time.Millisecond)
	}
}

func message(kind, body string) *rmq.Message {
	made := &rmq.Message{Topic: "Clients" + kind, Body: []byte(run + " " + body)}
	made.SetTag("tag")
	made.SetKeys(strings.ReplaceAll(body, " ", "-"))
	made.AddProperty("run", run)
	return made
}

func configuration(group string) *rmq.Config {
	return &rmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func push(group string, kinds []string, consume func(*rmq.MessageView) rmq.ConsumerResult) rmq.PushConsumer {
	subscribed := map[string]*rmq.FilterExpression{}
	for _, kind := range kinds {
		subscribed["Clients"+kind] = rmq.SUB_ALL
	}
	made, err := rmq.NewPushConsumer(configuration(group),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(subscribed),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}))
	must(err, "push consumer")
	must(made.Start(), "start of the push consumer")
	return made
}

func producer(checker *rmq.TransactionChecker, kinds ...string) rmq.Producer {
	topics := []string{}
	for _, kind := range kinds {
		topics = append(topics, "Clients"+kind)
	}
	options := []rmq.ProducerOption{rmq.WithTopics(topics...)}
	if checker != nil {
		options = append(options, rmq.WithTransactionChecker(checker))
	}
	made, err := rmq.NewProducer(configuration(""), options...)
	must(err, "producer")
	must(made.Start(), "start of the producer")
	return made
}

// Receives until exactly these bodies were there; the first one is given back once, and comes a second time.
func simple(kind string, filter *rmq.FilterExpression, wanted []string) {
	name := fmt.Sprintf("go-simple-%s-%d", kind, time.Now().UnixNano())
	consumer, err := rmq.NewSimpleConsumer(configuration(name),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{"Clients" + kind: filter}))
	must(err, "simple consumer")
	must(consumer.Start(), "start of the simple consumer")
	found, isGivenBack, isBack := &Bodies{}, false, false
	wait(func() bool {
		views, _ := consumer.Receive(context.TODO(), 32, 15*time.Second)
		for _, view := range views {
			if !isGivenBack && strings.HasPrefix(string(view.GetBody()), run) {
				must(consumer.ChangeInvisibleDuration(view, time.Second), "change of an invisible time")
				isGivenBack = true
				continue
			}
			found.add(view)
			isBack = isBack || view.GetDeliveryAttempt() == 2
			must(consumer.Ack(context.TODO(), view), "acknowledgement")
		}
		return found.has(wanted) && isBack
	}, "not all of "+kind, func() any { return found.found })
	sort.Strings(found.found)
	sort.Strings(wanted)
	check(strings.Join(found.found, ",") == strings.Join(wanted, ","), "the simple consumer received %v", found.found)
	must(consumer.GracefulStop(), "stop of the simple consumer")
}

func main() {
	isTLS := len(os.Args) > 2
	rmq.EnableSsl = isTLS
	rmq.ResetLogger()
	found, inOrder := &Bodies{}, &Bodies{}
	attempts := []int32{}
	pushed := push("go-push-"+run, []string{"NORMAL", "FIFO", "DELAY", "TRANSACTION"},
		func(view *rmq.MessageView) rmq.ConsumerResult {
			if string(view.GetBody()) == run+" again" {
				attempts = append(attempts, view.GetDeliveryAttempt())
				if view.GetDeliveryAttempt() == 1 {
					return rmq.FAILURE
				}
			}
			found.add(view)
			return rmq.SUCCESS
		})
	orderly := push("ClientsOrderly", []string{"FIFO"}, func(view *rmq.MessageView) rmq.ConsumerResult {
		inOrder.add(view)
		return rmq.SUCCESS
	})
	sender := producer(nil, "NORMAL", "FIFO", "DELAY")
	send := func(made *rmq.Message) {
		_, err := sender.Send(context.TODO(), made)
		must(err, "send of "+string(made.Body))
	}
	normal, fifo := []string{}, []string{}
	for n := 0; n < 10; n++ {
		send(message("NORMAL", fmt.Sprint("normal ", n)))
		grouped := message("FIFO", fmt.Sprint("fifo ", n))
		grouped.SetMessageGroup("group")
		send(grouped)
		normal, fifo = append(normal, fmt.Sprint("normal ", n)), append(fifo, fmt.Sprint("fifo ", n))
	}
	again := message("NORMAL", "again")
	again.AddProperty("price", "7")
	send(again)
	sent := make(chan error)
	other := message("NORMAL", "async")
	other.SetTag("other")
	sender.SendAsync(context.TODO(), other, func(_ context.Context, _ []*rmq.SendReceipt, err error) { sent <- err })
	must(<-sent, "asynchronous send")
	late := message("DELAY", "late")
	late.SetDelayTimestamp(time.Now().Add(2 * time.Second))
	send(late)
	var isAsked atomic.Bool
	transactional := producer(&rmq.TransactionChecker{Check: func(*rmq.MessageView) rmq.TransactionResolution {
		isAsked.Store(true)
		return rmq.COMMIT
	}}, "TRANSACTION")
	for _, body := range []string{"committed", "rolled back", "asked about"} {
		transaction := transactional.BeginTransaction()
		_, err := transactional.SendWithTransaction(context.TODO(), message("TRANSACTION", body), transaction)
		must(err, "send in a transaction")
		switch body {
		case "committed":
			must(transaction.Commit(), "commit")
		case "rolled back":
			must(transaction.RollBack(), "rollback")
		}
	}
	wanted := append(append([]string{"again", "async", "late", "committed", "asked about"}, normal...), fifo...)
	wait(func() bool { return found.has(wanted) }, "not all of the push consumer", func() any { return found.found })
	check(!found.has([]string{"rolled back"}), "received what was rolled back")
	check(isAsked.Load(), "the producer was not asked about its transaction")
	check(fmt.Sprint(attempts) == "[1 2]", "attempts %v", attempts)
	wait(func() bool { return inOrder.has(fifo) }, "not all in order", func() any { return inOrder.found })
	check(fmt.Sprint(inOrder.found) == fmt.Sprint(fifo), "not in order: %v", inOrder.found)
	simple("NORMAL", rmq.NewFilterExpression("tag"), append([]string{"again"}, normal...))
	sql := rmq.NewFilterExpressionWithType("price > 5 AND run = '"+run+"'", rmq.SQL92)
	simple("NORMAL", sql, []string{"again"})
	simple("FIFO", rmq.NewFilterExpression("tag || more"), fifo)
	for _, each := range []interface{ GracefulStop() error }{pushed, orderly, sender, transactional} {
		must(each.GracefulStop(), "stop")
	}
	fmt.Print("go: ok")
	if isTLS {
		fmt.Print(" over TLS")
	}
	fmt.Println()
}
