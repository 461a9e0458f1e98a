"""Workload x Hardware -> Prediction: memory, time and cost before hardware is rented. Formulas and data, no torch."""
