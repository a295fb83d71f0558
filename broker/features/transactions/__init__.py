"""Transactions: messages that consumers see once their producer has decided for them."""
