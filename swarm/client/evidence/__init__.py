"""What is left of a session: receipts, known rows, records, and who hears of them."""
