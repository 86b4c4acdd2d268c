"""What people read: lines, tables, progress."""
