"""Says whether the gateway's .proto files have the names, numbers and types that RocketMQ's Python client has.

Run with the client's own Python; the argument is the folder of the .proto files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rocketmq.grpc_protocol import definition_pb2, service_pb2


def main(folder: Path) -> int:
    """The exit code: 1 if something of the client's is not there."""
    missing = []
    for name, module in (("definition", definition_pb2), ("service", service_pb2)):
        text = re.sub(r"\s+", " ", (folder / f"{name}.proto").read_text())
        for enum in module.DESCRIPTOR.enum_types_by_name.values():
            missing += [
                f"{enum.name}.{each.name}" for each in enum.values if f" {each.name} = {each.number};" not in text
            ]
        for message in module.DESCRIPTOR.message_types_by_name.values():
            body = re.search(
                rf" message {message.name} {{(.*?)}} (?=message|enum|service|$)", text.strip() + " message"
            )
            content = body[1] if body is not None else ""
            missing += [
                f"{message.name}.{each.name}"
                for each in message.fields
                if f" {each.name} = {each.number};" not in content and f" {each.name} = {each.number} [" not in content
            ]
    print("protocol: " + (f"differs: {', '.join(missing)}" if missing else "the same as the Python client's"))
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
