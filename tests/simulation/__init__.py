"""Simulates a sender, its front-ends and its brokers on a virtual clock: thousands of schedules a minute."""
