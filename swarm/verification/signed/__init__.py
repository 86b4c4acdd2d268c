"""What servers sign of their work: rows in leaves, leaves under roots, roots in receipts; what those say together."""
