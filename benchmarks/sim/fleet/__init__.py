"""A fleet of schedulers and thousands of workers in simulated time, with the code that decides for them."""
