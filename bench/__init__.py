"""Benchmarks of whole runs. `python -m bench.elastic`: what a kill costs. `python -m bench.replay`: same losses?"""
