"""The nameserver: routes from brokers' registrations, pushed to whoever watches; key-value configuration."""

from .config import NameserverConfig, load_nameserver_config

__all__ = ["NameserverConfig", "load_nameserver_config"]
