# Builds the Horovod wheel and keeps it; sourced by setup.sh, which gives say, fail, pip and run_logged, and the
# variables root, venv, scratch, cache, HOROVOD, MPI and GPU.
# shellcheck shell=bash
#
# A wheel loads only with the TensorFlow that it was built against. So its version says which one that was
# (0.28.1+tf2.21.0.gloo), for trainer/distributed.py to check at start, and wheels are kept under that name.

readonly horovod_version=0.28.1

tensorflow_version() { sed -n 's/^tensorflow-cpu==\([^ ]*\).*/\1/p' "$root/requirements.txt"; }

# Horovod's version with what it is built against: 0.28.1+tf2.21.0.gloo, then .mpi and .nccl where it has those.
wheel_version() {
    local variant=gloo
    if [ "$MPI" = 1 ]; then variant+=.mpi; fi
    if [ "$GPU" = 1 ]; then variant+=.nccl; fi
    printf '%s+tf%s.%s\n' "$horovod_version" "$(tensorflow_version)" "$variant"
}

# The wheel's place in the cache: its name holds Horovod, TensorFlow, controllers, Python, system and machine.
wheel_path() {
    printf '%s/wheels/horovod-%s-cp311-cp311-linux_%s.whl\n' "$cache" "$(wheel_version)" "$(uname -m)"
}

# True if NAMEs include a program that can be run.
has_any() {
    local name
    for name in "$@"; do
        if type -P "$name" >/dev/null; then return; fi
    done
    return 1
}

# Sets cmake to one of 3.13 or newer; a name in PATH may be a shim that fails when called, so each is tried.
find_cmake() {
    local candidate
    local -a version
    while read -r candidate; do
        version=()
        read -ra version < <("$candidate" --version 2>/dev/null |
            sed -n 's/^cmake version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p') || continue
        if ((version[0] > 3 || (version[0] == 3 && version[1] >= 13))); then
            cmake=$candidate
            return
        fi
    done < <(type -aP cmake || true)
    return 1
}

# Everything that the build needs, before anything long is done; one line names all that is missing.
check_build_tools() {
    local -a missing=() packages=()
    local cuda=${HOROVOD_CUDA_HOME:-/usr/local/cuda} folder nccl='' list
    if ! has_any ${CXX:+"$CXX"} c++ g++ clang++; then missing+=('a C++ compiler') packages+=(g++); fi
    if ! has_any make gmake; then missing+=(make) packages+=(make); fi
    if ! find_cmake; then missing+=('cmake 3.13 or newer') packages+=(cmake); fi
    if [ "$MPI" = 1 ] && ! has_any mpicxx; then missing+=('mpicxx (MPI=1)') packages+=(openmpi-bin libopenmpi-dev); fi
    if [ "$GPU" = 1 ]; then
        if ! has_any nvcc "$cuda/bin/nvcc"; then missing+=('nvcc (GPU=1)') packages+=(cuda-toolkit); fi
        for folder in "${HOROVOD_NCCL_HOME:-/usr}/include" "$cuda/include" /usr/local/include; do
            if [ -f "$folder/nccl.h" ]; then nccl=$folder; fi
        done
        if [ -z "$nccl" ]; then missing+=('nccl.h (GPU=1)') packages+=(libnccl-dev); fi
    fi
    [ "${#missing[@]}" -gt 0 ] || return 0
    printf -v list '%s, ' "${missing[@]}"
    fail "missing to build Horovod: ${list%, }. Install it (Debian, Ubuntu: apt install ${packages[*]})," \
        'or do without Horovod: HOROVOD=0'
}

# patch_line FILE OLD NEW: replaces the one line that is exactly OLD.
patch_line() {
    local count
    count=$(grep -cxF -- "$2" "$1") || true
    [ "${count:-0}" = 1 ] ||
        fail "Horovod's ${1#"$scratch"/} has ${count:-0} lines \"$2\" instead of one: not the sources of $horovod_version"
    awk -v old="$2" -v new="$3" '{ print($0 == old ? new : $0) }' "$1" >"$1.patched"
    mv "$1.patched" "$1"
}

# How many compilers run at once: one per CPU, as far as 1.5 GiB for each are free.
build_jobs() {
    local cpus memory
    cpus=$(nproc)
    memory=$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo 2>/dev/null) || memory=
    if [ "${memory:-$cpus}" -lt "$cpus" ]; then cpus=$memory; fi
    echo "$((cpus > 0 ? cpus : 1))"
}

fetch_sources() {
    pip download --no-deps --no-binary horovod --no-build-isolation --dest "$scratch" "horovod==$horovod_version" &&
        tar -xzf "$scratch/horovod-$horovod_version.tar.gz" -C "$scratch"
}

# compile_wheel SOURCE JOBS: leaves the wheel in $scratch/dist. Runs in a subshell of run_logged: it sets variables.
compile_wheel() {
    local name
    # What other builds left in the environment would change this one.
    for name in $(compgen -v HOROVOD_); do
        case $name in
            *_HOME | *_INCLUDE | *_LIB | *_LINK) ;;
            *) unset "$name" ;;
        esac
    done
    unset MFLAGS MAKEOVERRIDES MAKELEVEL
    export PATH=$venv/bin:$PATH MAKEFLAGS=-j$2 HOROVOD_CMAKE=$cmake
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
    if [ "$MPI" = 1 ]; then export HOROVOD_WITH_MPI=1; else export HOROVOD_WITHOUT_MPI=1; fi
    if [ "$GPU" = 1 ]; then export HOROVOD_GPU=CUDA HOROVOD_GPU_OPERATIONS=NCCL; fi
    # Gloo's headers use fixed-width integers without including them, which GCC 13 and newer refuse; and its CMake file
    # asks for a policy version that CMake 4 has dropped.
    export CXXFLAGS="${CXXFLAGS-} -include cstdint" CMAKE_POLICY_VERSION_MINIMUM=3.5
    # Without --quiet: pip then logs the compiler's messages when the build fails.
    "$venv/bin/python" -m pip --disable-pip-version-check wheel --no-deps --no-build-isolation --no-cache-dir \
        --wheel-dir "$scratch/dist" "$1"
}

# build_failed LOG WHAT: keeps the log, shows its end and gives up.
build_failed() {
    local kept=$cache/horovod-build.log
    mkdir -p "$cache"
    cp "$1" "$kept"
    tail -n 30 "$1" >&2
    fail "$2; the end of its log stands above, all of it in $kept"
}

# Builds the wheel that wheel_path names and puts it there at once and whole.
build_horovod() {
    local log=$scratch/horovod-build.log source=$scratch/horovod-$horovod_version jobs target
    jobs=$(build_jobs)
    target=$(wheel_path)
    say "building Horovod $(wheel_version) from its sources, about 4 minutes on 2 CPUs ($jobs compilers at once)"
    run_logged "$log" fetch_sources || build_failed "$log" "could not get the sources of Horovod $horovod_version"

    patch_line "$source/horovod/__init__.py" "__version__ = '$horovod_version'" "__version__ = '$(wheel_version)'"
    # This file includes XLA headers that TensorFlow's wheel does not have whole. What it defines, collectives inside
    # XLA programs, exists on GPUs alone and is off there unless asked for.
    patch_line "$source/horovod/tensorflow/xla_mpi_ops.cc" '#if TENSORFLOW_VERSION >= 2006000000' '#if 0'

    run_logged "$log" compile_wheel "$source" "$jobs" || build_failed "$log" 'the build of Horovod failed'
    [ -f "$scratch/dist/${target##*/}" ] ||
        build_failed "$log" "the build of Horovod gave $(ls "$scratch/dist") instead of ${target##*/}"
    mkdir -p "${target%/*}"
    # First beside its place, then renamed: whoever looks there finds a whole wheel or none.
    cp "$scratch/dist/${target##*/}" "$target.$$"
    mv "$target.$$" "$target"
}

# Installs the wheel, from the cache if it is there and loads, and checks that it loads with this TensorFlow.
install_horovod() {
    local wheel
    wheel=$(wheel_path)
    if [ -f "$wheel" ]; then
        say "installing Horovod $(wheel_version) from $wheel"
        if pip install --no-deps --force-reinstall "$wheel" && horovod_loads; then return; fi
        say 'that wheel does not load here (another C library or MPI): building anew'
        check_build_tools
    fi
    build_horovod
    pip install --no-deps --force-reinstall "$wheel" || fail "pip could not install $wheel"
    horovod_loads || fail "Horovod was built but does not load: try $venv/bin/python -c 'import horovod.tensorflow'"
}

horovod_loads() { TF_CPP_MIN_LOG_LEVEL=3 "$venv/bin/python" -c 'import horovod.tensorflow' >/dev/null 2>&1; }
