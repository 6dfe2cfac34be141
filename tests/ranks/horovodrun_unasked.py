"""horovodrun for a build that is known to have Gloo.

horovodrun itself finds out which controllers its build has by importing TensorFlow, twice, before it starts anything.
One test pays for that; the others start their ranks through this, which is horovodrun in everything else.
"""

from horovod.runner import launch

if __name__ == "__main__":  # its middlemen are spawned, and import this file again
    launch.mpi_built = lambda verbose=False: False
    launch.gloo_built = lambda verbose=False: True
    launch.run_commandline()
