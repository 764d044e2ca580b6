# Functions that the jobs here share.

step() { # step NAME COMMAND: run it, and say how long it took
    local name=$1 begin=$SECONDS
    shift
    echo "==> $name"
    "$@"
    echo "==> $name: $((SECONDS - begin)) s"
}

copy_checkout() { # copy_checkout FROM TO: the files git knows, and the new ones it does not ignore
    (
        cd "$1"
        git ls-files -z --cached --others --exclude-standard |
            while IFS= read -r -d '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done |
            tar --null --files-from=- --create
    ) | tar --extract --directory="$2"
}

newest_python() { # print the path of the newest Python that is newer than the default one; fail where there is none
    local default candidate versions
    default=$(python -c 'import sys; print(sys.version_info[1])')
    versions=$(pyenv root 2>/dev/null || true)/versions
    for minor in 14 13 12; do
        [ "$minor" -gt "$default" ] || break
        for candidate in "$versions"/3."$minor".*/bin/python "$(command -v "python3.$minor" || true)"; do
            if [ -x "$candidate" ] && "$candidate" -c "import sys, venv; sys.exit(sys.version_info[1] != $minor)" 2>/dev/null; then
                echo "$candidate"
                return 0
            fi
        done
    done
    return 1
}
