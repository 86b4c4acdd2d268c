"""Audits of closed sessions: fetch what servers kept, compute it again elsewhere, judge, and prove to others."""
