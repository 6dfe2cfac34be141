# The harness on NVIDIA's last TensorFlow 2 image, with its own TensorFlow and Horovod: training, evaluation and
# benchmarks. Preprocessing runs outside of it, in the environment that `make setup` makes: NVTabular 23.8 does not run
# on the image's Python 3.12. Not built on the machine that this was written on: tests/scripts/test_dockerfile.py checks
# every path and command below.
#
#     docker build -t recsys-harness .
#     docker run --gpus=all --ipc=host -v /outbrain:/outbrain -v "$PWD/results:/results" recsys-harness \
#         horovodrun -np 8 sh hvd_wrapper.sh python main.py --amp --xla
FROM nvcr.io/nvidia/tensorflow:25.02-tf2-py3

WORKDIR /workspace/recsys-harness

# Only what the image lacks is installed, without dependencies and free of the image's constraints; then nothing of the
# image may have changed, and its TensorFlow and Horovod must import.
COPY requirements-ngc.txt ./
COPY scripts/image_packages.py scripts/
RUN python scripts/image_packages.py record /tmp/image-packages.txt \
    && python scripts/image_packages.py missing requirements-ngc.txt > /tmp/missing.txt \
    && PIP_CONSTRAINT= python -m pip install --no-cache-dir --no-deps -r /tmp/missing.txt \
    && python scripts/image_packages.py compare /tmp/image-packages.txt \
    && rm /tmp/image-packages.txt /tmp/missing.txt

COPY . .

# A container's only user is root; mpirun refuses root unless told twice.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

CMD ["python", "main.py", "--help"]
