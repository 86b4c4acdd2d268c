"""What rows leave behind: replay log, leaves, receipts, and giving them back."""
