"""The directory of servers: the protocol, an in-memory fake, and the adapter to hivemind's Kademlia DHT."""
