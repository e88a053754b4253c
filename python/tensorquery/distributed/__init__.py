"""This process among the others: topology, rendezvous, and the broadcast of one rank's work."""
