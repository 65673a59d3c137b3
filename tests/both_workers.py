"""Two workers at hand, also after a test has killed one."""


def await_both(client):
    """Wait until both workers are there; start them anew if the one that was killed does not come back."""
    try:
        client.wait_for_workers(2, timeout=90)
    except TimeoutError:
        client.restart(timeout=120)
        client.wait_for_workers(2, timeout=120)
