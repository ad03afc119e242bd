# Runs pip, and ends it as soon as standard input ends: the parent holds the other end of that pipe
# and never writes to it. os.read, because a thread that waits in sys.stdin holds a lock that Python
# wants at its exit.
import os, runpy, threading

def end_with_parent():
    while os.read(0, 1):
        pass
    os._exit(1)

threading.Thread(target=end_with_parent, daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
