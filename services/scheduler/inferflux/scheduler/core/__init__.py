"""The scheduler's decisions (pure): messages and the time in, actions out.

    scheduler       what happens: jobs, cancel notices, answers, time, an administrator's wishes
    worker_reports  what workers report
    planning        which request is next, and where
    state           what the scheduler holds, and the transitions of a job
    lease           who leads

Nothing here waits, sends or looks at a clock, so the same code runs behind NATS and in a simulation.
"""
