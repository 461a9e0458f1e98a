"""The questions of the doctor, one module per group, shown in the order in which they stand."""
