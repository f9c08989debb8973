"""Every process of a stack killed, stopped and paused at random, under load, and what clients saw of it.

schedule    which faults happen when: a function of the seed
workload    what the clients ask, and when they change their minds: another one
caller      a client that does as a good client should
transcript  what one client was sent, held against what it should be
published   what was published on the token subjects, with or without readers
inflict     does the faults to a stack
disk        what can happen to KV state on disk
exchange    what can happen to KV state on its way to another worker
operator    what an operator may do meanwhile
processes   what runs on this machine and should not
report      breaches, and the lines people read
run         all of it together
"""
