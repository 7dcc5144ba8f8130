# The bash session: what an interactive bash is told first. Its functions are called between commands.
#
# As it is started, 0 is where it reads (lines of ours), 3 is for results, 4 and 5 are what commands
# write to. All of them move out of the way: commands run with /dev/null, 57 and 58 as their 0, 1
# and 2, and do not have 59, the results. What bash itself says between commands goes nowhere.
#
# A result is a number, a space, the text, a NUL byte; the text is "+" when a command begins to run. A session that cannot answer any more exits.

set +o history +o histexpand +o monitor
unset MAILCHECK HISTFILE PROMPT_COMMAND
PS1='$ '
__headstart_status=0 __headstart_flags=$- __headstart_options= __headstart_later=
__headstart_hostname=${HOSTNAME-}
__headstart_folder= __headstart_away=

# leave: go where a checkpoint does not mind, until `come_back`.
__headstart_leave() {
    local __headstart_opts=$SHELLOPTS
    builtin set +eu
    __headstart_away=$__headstart_folder
    __headstart_go_to /
    __headstart_resume "$__headstart_opts"
}

__headstart_come_back() {
    if [[ -z $__headstart_away ]]; then return 0; fi
    local __headstart_opts=$SHELLOPTS
    builtin set +eu
    if ! __headstart_go_to "$__headstart_away"; then
        builtin cd /
        builtin printf 'bash: the working folder %s is gone; this is /\n' "$__headstart_away" >&58
    fi
    __headstart_away=
    __headstart_resume "$__headstart_opts"
}

# go_to FOLDER: PWD and OLDPWD stay what they are, by being hidden meanwhile; one that is readonly cannot be, nor changes.
__headstart_go_to() {
    local PWD OLDPWD
    builtin cd -- "$1"
    [[ . -ef $1 ]]
}

# Set `$?` for the next command.
__headstart_return() { return "$1"; }

# report NUMBER: how the command before ended, and where the session is.
__headstart_report() {
    local __headstart_last=$?
    { builtin set +xv; } 2>/dev/null
    if [[ -z $__headstart_status ]]; then # it did not get to its end: interrupted, or given up by bash
        __headstart_status=$__headstart_last
        __headstart_flags=$-
    fi
    __headstart_options=
    if [[ $__headstart_flags != *e* ]]; then __headstart_options="__headstart_return $__headstart_status;"; fi
    if [[ $__headstart_flags == *x* ]]; then __headstart_options+='\builtin set -x;'; fi
    if [[ $__headstart_flags == *v* ]]; then __headstart_options+='\builtin set -v;'; fi
    __headstart_options+=$__headstart_later # of a state that was restored
    __headstart_later=
    {
        builtin printf '%s %s ' "$1" "$__headstart_status"
        builtin pwd || builtin printf '?\n'
        builtin printf '\0'
    } >&59 || builtin exit 70
}

# look NUMBER: the session's jobs, functions and variables, as bash lists them. A fork to read that here would cost more
# than to be told what is in it.
__headstart_look() {
    local __headstart_opts=$SHELLOPTS
    builtin set +eu
    builtin printf '%s +\0%s ' "$1" "$1"
    builtin jobs -p
    builtin declare -F
    builtin declare -p
    builtin printf '\0'
    __headstart_resume "$__headstart_opts"
}

# begin NUMBER [PARAMETER...]: the first part of the session's state, as code. Traps follow, then `end`.
# Which variables and functions, is in arrays; some are not there.
__headstart_begin() {
    local __headstart_opts=$SHELLOPTS __headstart_text __headstart_at
    builtin set +eu
    builtin printf '%s +\0%s # headstart shell state 1\n' "$1" "$1"
    builtin shift
    __headstart_text=$RANDOM:$RANDOM # where it stands cannot be asked: all go on from what it says next
    if [[ $__headstart_text == +([0-9]):+([0-9]) ]]; then # else it was unset, and is a variable as any other
        __headstart_text=$((${__headstart_text%:*} << 15 | ${__headstart_text#*:}))
        builtin printf -v RANDOM %d "$__headstart_text"
        builtin printf 'RANDOM=%d\n' "$__headstart_text"
    fi
    builtin shopt -p
    builtin printf 'builtin %s\n' 'shopt -u expand_aliases' 'unset -v $(\builtin compgen -e)'
    builtin printf 'builtin '
    builtin umask -p
    if [[ -z $__headstart_away ]]; then
        __headstart_folder=${PWD-}
        if [[ $__headstart_folder != /* || ! $__headstart_folder -ef . ]]; then
            __headstart_folder=$(\builtin pwd; \builtin printf x) # the end of a name may be a newline
            __headstart_folder=${__headstart_folder%$'\nx'}
        fi
    fi
    builtin printf 'builtin cd -- %q || __headstart_missing=1\n' "$__headstart_folder"
    for ((__headstart_at = ${#DIRSTACK[@]} - 1; __headstart_at > 0; __headstart_at--)); do
        builtin printf 'builtin pushd -n -- %q >/dev/null\n' "${DIRSTACK[__headstart_at]}"
    done
    for __headstart_text in {S,H}{c,d,f,l,n,s,t,u,v}; do # a hard one may not be below its soft one
        builtin printf 'builtin ulimit -%s ' "$__headstart_text"
        builtin ulimit "-$__headstart_text"
    done
    ((${#__headstart_variables[@]})) && builtin declare -p -- "${__headstart_variables[@]}"
    # HOSTNAME: a new bash knows it, and may be elsewhere
    [[ ${HOSTNAME-} == "$__headstart_hostname" ]] || builtin declare -p -- HOSTNAME
    builtin alias -p
    builtin printf 'builtin set --'
    (($#)) && builtin printf ' %q' "$@"
    builtin printf '\n'
    __headstart_resume "$__headstart_opts"
}

# end: functions and options.
__headstart_end() {
    local __headstart_opts=$SHELLOPTS __headstart_line __headstart_name
    local __headstart_rest __headstart_later=$__headstart_options
    builtin set +eu
    for __headstart_line in "${__headstart_functions[@]}"; do
        __headstart_name=${__headstart_line#declare -* }
        __headstart_line=${__headstart_line%" $__headstart_name"}
        builtin declare -f -- "$__headstart_name" || continue
        [[ $__headstart_line == 'declare -f' ]] || builtin printf 'builtin %s -- %q\n' "$__headstart_line" "$__headstart_name"
    done
    builtin printf 'builtin set +o %s\n' braceexpand hashall interactive-comments
    __headstart_rest=$__headstart_opts:
    while [[ -n $__headstart_rest ]]; do
        case ${__headstart_rest%%:*} in
            errexit | histexpand | history | monitor | noexec | onecmd | verbose | xtrace) ;;
            *) builtin printf 'builtin set -o %s\n' "${__headstart_rest%%:*}" ;;
        esac
        __headstart_rest=${__headstart_rest#*:}
    done
    [[ :$__headstart_opts: == *:errexit:* ]] && __headstart_later+='\builtin set -e;'
    builtin printf '__headstart_later=%q\n' "$__headstart_later"
    builtin shopt -q expand_aliases && builtin printf 'builtin shopt -s expand_aliases\n'
    builtin printf '\\builtin test -z "${__headstart_missing-}"\n\0'
    __headstart_resume "$__headstart_opts"
}

# resume OPTIONS: undo `set +eu`.
__headstart_resume() {
    if [[ :$1: == *:nounset:* ]]; then builtin set -u; fi
    if [[ :$1: == *:errexit:* ]]; then builtin set -e; fi
}

exec 59>&3 57>&4 58>&5 3>&- 4>&- 5>&- 6>&- >/dev/null 2>&1
