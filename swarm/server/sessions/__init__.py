"""Sessions at a server: who is let in, steps on their way, links to the servers before and after."""
