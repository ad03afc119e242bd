#!/bin/sh
# Installs what TideKV is compared with into a directory: llama.cpp's llama-bench, built for this
# machine, and PyTorch with kvpress. Needs python3 with venv, a C++ compiler and the Python registry;
# about 7 GB, since PyTorch brings its CUDA packages along and kvpress does not import without them.
#
#   bench/peers/setup.sh DIR
set -eu

dir=${1:?"usage: setup.sh DIR"}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

python3 -m venv "$dir/venv"
pip="$dir/venv/bin/pip"
# pip asks a source package for its metadata, for which it needs the package's build tool.
"$pip" install --quiet cmake ninja scikit-build-core

# The source package of the bindings carries llama.cpp whole.
bindings=0.3.36
if [ ! -x "$dir/llama/bin/llama-bench" ]; then
    "$pip" download --quiet --no-deps --no-binary :all: --no-build-isolation \
        --dest "$dir/source" "llama-cpp-python==$bindings"
    tar -xzf "$dir/source/llama_cpp_python-$bindings.tar.gz" -C "$dir/source"
    "$dir/venv/bin/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$dir/venv/bin/ninja" \
        -S "$dir/source/llama_cpp_python-$bindings/vendor/llama.cpp" -B "$dir/llama" \
        -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
        > "$dir/configure.log"
    "$dir/venv/bin/cmake" --build "$dir/llama" --target llama-bench > "$dir/build.log"
fi

"$pip" install --quiet torch "transformers<5.3" kvpress==0.5.5 gguf
"$dir/venv/bin/python" -c "import kvpress, torch, transformers; print(torch.__version__, transformers.__version__)"
