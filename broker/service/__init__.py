"""What a broker does on behalf of clients, nameservers and replicas, on top of the store."""
