"""What verdicts make of a server over time, what that costs a cheater, and who has earned what."""
