"""Measures how much a noisy front-end or a sick broker delays another front-end."""
