"""Defines the settings of a producer, and the kinds of values that they accept."""
