"""How fast InferFlux is: a load generator, the limit it is held against, and the table they fill."""
