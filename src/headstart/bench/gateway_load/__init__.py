"""The processes that the gateway bench starts: one small server, and two gateways in front of it."""
