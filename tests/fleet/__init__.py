"""A fleet of hosts, each in a network namespace, that is broken under load, and what clients saw of it.

apart       a process namespace of its own: nothing of a run outlives it
namespaces  network namespaces and TAP devices
wire        when a frame comes out of the switch, if it does
switch      the process between the hosts
network     hosts, and what is cut between them
clocks      wall clocks that differ
layout      which processes are on which host
machines    the fleet: hosts start, die, stand still, come back
asks        what clients ask, and what the answer is
load        clients
history     what was seen
watching    what is seen on NATS and in Redis
checks      what a history must not have
faults      what is done to hosts, and when
cases       loads with faults, and what may come of them
errors      what ends a run
run         all of it together
"""
