# shellcheck shell=bash
# The part of testdb that makes the root directory its databases run in; sourced by it, only when there is none yet.
#
# PostgreSQL with DocumentDB comes from Debian forky, through the mirror this machine's apt already uses, and is
# unpacked and not installed, so the release and the packages of the machine do not matter. FerretDB is built with go.
readonly FERRETDB=v2.7.0 DEBIAN=forky POSTGRES=postgresql-18

# bounded SECONDS CMD...: CMD with a time limit, in the background so that a signal to this script ends it too.
bounded() {
  local rc=0
  timeout --kill-after=10 "$@" </dev/null &
  BUSY=$!
  wait "$BUSY" || rc=$?
  BUSY=''
  return "$rc"
}

# The archive this machine's apt takes Debian from. Third-party archives carry a Debian codename too, but no
# component "main" under it.
# shellcheck disable=SC2016 # apt's variables, not ours
mirror() {
  local codename release component uri
  # shellcheck source=/dev/null
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-sid}")
  while read -r release component uri; do
    case $component:$release in
      main:"$codename" | main:stable | main:oldstable | main:testing | main:unstable | main:sid)
        echo "$uri"
        return 0
        ;;
    esac
  done < <(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages')
  return 1
}

# An apt of our own: the machine's way to the network (proxy, credentials, retries), but our source and state, so
# that nothing about the machine's packages is read or changed.
private_apt() {
  local apt=$1 keyring uri
  for keyring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg} ''; do
    if [ -e "$keyring" ]; then break; fi
  done
  [ -n "$keyring" ] || die "no Debian archive keyring here: apt-get install debian-archive-keyring"
  uri=$(mirror) || die "apt has no Debian archive configured here, so there is no mirror to take $DEBIAN from"
  mkdir -p "$apt"/none "$apt"/state/lists/partial "$apt"/cache/archives/partial
  : >"$apt/state/status"
  echo "deb [signed-by=$keyring] $uri $DEBIAN main" >"$apt/sources.list"
  {
    apt-config dump | grep '^Acquire::' || true
    cat <<END
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "$apt/none";
Dir::Etc::parts "$apt/none";
Dir::Etc::preferences "$apt/none/preferences";
Dir::Etc::preferencesparts "$apt/none";
Dir::State "$apt/state";
Dir::State::status "$apt/state/status";
Dir::Cache "$apt/cache";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
END
  } >"$apt/apt.conf"
}

download_postgres() {
  local apt=$1
  private_apt "$apt"
  say "fetching $POSTGRES with DocumentDB from Debian $DEBIAN"
  export APT_CONFIG=$apt/apt.conf
  # Without --error-on=any, apt takes an unreachable mirror for a warning.
  bounded 300 apt-get update -q --error-on=any >"$apt/log" 2>&1 ||
    die "no package list of $DEBIAN from this machine's Debian mirror: $(grep -m 1 '^[EW]:' "$apt/log")"
  bounded 600 apt-get install -q -y --download-only "$POSTGRES-documentdb" dash >"$apt/log" 2>&1 ||
    die "could not download $POSTGRES: $(grep -m 1 '^[EW]:' "$apt/log")"
  unset APT_CONFIG
}

unpack_postgres() {
  local archives=$1 dir deb
  mkdir -p "$ROOT"/{usr/{bin,sbin,lib,lib64},dev,etc,tmp,"$PGHOME"}
  for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$ROOT/$dir"; done
  for deb in "$archives"/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$ROOT" --keep-directory-symlink --exclude='*/bitcode/*' \
      --exclude=./usr/share/{doc,man,locale} || die "could not unpack ${deb##*/}"
  done
  chmod 1777 "$ROOT/tmp"
  chown "$PGUSER:$PGUSER" "$ROOT$PGHOME"
  echo "postgres:x:$PGUSER:$PGUSER::$PGHOME:/bin/sh" >"$ROOT/etc/passwd"
  echo "postgres:x:$PGUSER:" >"$ROOT/etc/group"
  echo '127.0.0.1 localhost' >"$ROOT/etc/hosts"
  for dir in 'null 3' 'zero 5' 'urandom 9'; do
    mknod -m 666 "$ROOT/dev/${dir% *}" c 1 "${dir#* }" ||
      die "may not make device files here (a container without CAP_MKNOD?)"
  done
  # Maintainer scripts do not run here; these are the two things that are needed of them.
  ln -sf postgis-3.control "$ROOT/usr/share/postgresql/18/extension/postgis.control"
  chroot "$ROOT" /sbin/ldconfig
}

as_postgres() { "${AS_POSTGRES[@]}" "$ROOT" "$@"; }

# The data directory that every start copies: initdb and CREATE EXTENSION take most of a start's time.
make_template() {
  local at=$PGHOME/db-template
  PORT=template # by this name, remove_half_made finds the processes
  install -d -m 700 -o $PGUSER -g $PGUSER "$ROOT$at"
  as_postgres "$PGBIN/initdb" -D "$at/data" -U postgres -E UTF8 --locale=C.UTF-8 --auth=trust --no-sync \
    >"$TMP/log" 2>&1 || die "initdb failed: $(tail -n 1 "$TMP/log")"
  # deadlock_timeout: upserts that race on one key deadlock in DocumentDB, and each waits this long to find out.
  # fsync and synchronous_commit stay on: tests kill the database and count what it had acknowledged.
  # Background workers for pg_cron, because its table names the socket directory, and each database has another.
  cat >>"$ROOT$at/data/postgresql.conf" <<END
listen_addresses = ''
dynamic_shared_memory_type = mmap
shared_preload_libraries = 'pg_cron,pg_documentdb_core,pg_documentdb'
cron.database_name = 'postgres'
cron.use_background_workers = on
max_connections = 300
max_worker_processes = 64
shared_buffers = 128MB
deadlock_timeout = 10ms
END
  as_postgres "$PGBIN/pg_ctl" -D "$at/data" -o "-c unix_socket_directories=$at" -l "$at/log" -w -t 60 -s start 9>&- ||
    die "PostgreSQL did not start: $(tail -n 1 "$ROOT$at/log")"
  as_postgres "$PGBIN/psql" -h "$at" -U postgres -qc 'CREATE EXTENSION documentdb CASCADE' >"$TMP/log" 2>&1 ||
    die "CREATE EXTENSION documentdb failed: $(tail -n 1 "$TMP/log")"
  as_postgres "$PGBIN/pg_ctl" -D "$at/data" -w -t 60 -s -m fast stop
}

build_gateway() {
  command -v go >/dev/null || die "no go command on PATH to build FerretDB with"
  say "building FerretDB $FERRETDB (four to five minutes, once)"
  # Outside any module, and with flags of its own: the caller's may ask for -race or a vendor folder.
  bounded 1800 nice env -C "$TMP" GOBIN="$TMP/bin" GOFLAGS=-trimpath GOWORK=off CGO_ENABLED=0 \
    go install "github.com/FerretDB/FerretDB/v2/cmd/ferretdb@$FERRETDB" >"$TMP/log" 2>&1 ||
    die "could not build FerretDB: $(tail -n 1 "$TMP/log")"
  mv "$TMP/bin/ferretdb" "$1"
}

# remove_half_made DIR: an install that did not end, and the PostgreSQL that it may have left.
remove_half_made() {
  local ROOT=$1/root PORT=template DIR=$1
  kill_db
  rm -rf "$1"
}

# Everything is made in a temporary directory and renamed when it is whole, so what has its final name is whole.
make_root() {
  local final=$ROOT gateway=$CACHE/ferretdb-$FERRETDB tmp
  mkdir -p "$CACHE"
  exec 9>"$CACHE/testdb.lock"
  flock -n 9 || {
    say "waiting for another testdb that is installing"
    flock -w 2400 9 || die "another testdb has been installing for too long"
  }
  if [ ! -d "$final" ]; then
    for tmp in "$CACHE"/testdb-tmp.*; do
      if [ -d "$tmp" ]; then remove_half_made "$tmp"; fi
    done
    TMP=$(mktemp -d "$CACHE/testdb-tmp.XXXXXX")
    chmod 755 "$TMP"
    if [ ! -x "$gateway" ]; then build_gateway "$gateway"; fi
    ROOT=$TMP/root
    download_postgres "$TMP/apt"
    unpack_postgres "$TMP/apt/cache/archives"
    install -D "$gateway" "$ROOT/usr/bin/ferretdb"
    make_template
    mv -T "$ROOT" "$final"
    rm -rf "$TMP"
    ROOT=$final PORT='' TMP=''
  fi
  exec 9>&-
}
