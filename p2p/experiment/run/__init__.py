"""Carries an experiment out: draws its events, starts peers, and does to them what is due."""
