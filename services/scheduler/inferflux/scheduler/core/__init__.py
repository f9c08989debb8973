"""The scheduler's decisions (pure): messages and the time in, actions out.

    scheduler   what happens: jobs, cancel notices, answers, the passing of time, an administrator's wishes
    hearing     what workers say
    planning    who is next, and where
    lifecycle   from one state of a job to the next
    lease       who leads

Nothing here waits, sends or looks at a clock, so the same code runs behind NATS and in a simulation.
"""
