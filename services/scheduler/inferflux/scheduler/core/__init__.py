"""The scheduler's decisions (pure): messages and the time in, actions out.

    scheduler  jobs, cancel notices, answers, time, an administrator's wishes: an event in, actions out
    lifecycle  a job's way, from its arrival to its end
    order      the order in which jobs wait, and the shares of tenants
    workers    workers, their slots, and placement
    types      a job, the actions, and the numbers that the core decides by
    lease      a lease on leadership

Nothing here waits, sends or looks at a clock, so the same code runs behind NATS and in a simulation.
"""
