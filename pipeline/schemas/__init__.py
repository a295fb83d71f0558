"""Bodies that have a schema: JSON, Avro and Protobuf as columns, and columns as such bodies."""
