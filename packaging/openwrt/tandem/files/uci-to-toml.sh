# Translates /etc/config/tandem to the proxy's TOML. To be sourced after /lib/functions.sh.

# uci_to_toml PACKAGE: writes TOML to standard output.
uci_to_toml() {
	# In TOML, top-level keys must precede all tables, wherever the section `proxy` is.
	TOML_TOP= TOML_TABLES= TOML_SECTION= TOML_LIST= TOML_ITEMS=
	config_cb() { toml_end_list; toml_section "$1"; }
	option_cb() { toml_end_list; toml_option "$1" "$2"; }
	list_cb() { toml_item "$1" "$2"; }
	config_load "$1"
	local status=$?
	toml_end_list
	reset_cb
	printf '%s%s' "$TOML_TOP" "$TOML_TABLES"
	return $status
}

TOML_NEWLINE='
'

# An unknown section type becomes a table, which the proxy then rejects by name.
toml_section() {
	TOML_SECTION=$1
	case $1 in
	proxy | '') ;;
	listen | leg | rule) toml_line "[[$1]]" ;;
	bond_network) toml_line "[[bond.network]]" ;;
	*) toml_line "[$1]" ;;
	esac
}

# toml_line LINE: adds a line to the current section.
toml_line() {
	if [ "$TOML_SECTION" = proxy ]; then
		TOML_TOP="$TOML_TOP$1$TOML_NEWLINE"
	else
		TOML_TABLES="$TOML_TABLES$1$TOML_NEWLINE"
	fi
}

toml_option() {
	case $TOML_SECTION/$1 in
	proxy/enabled) ;; # for the init script
	*/network) toml_line "interface = $(toml_string "$(toml_device "$2")")" ;;
	*) toml_line "$1 = $(toml_value "$1" "$2")" ;;
	esac
}

# toml_device NETWORK: prints the device of an OpenWrt network.
toml_device() {
	local device
	. /lib/functions/network.sh
	network_get_device device "$1" || device=$1
	printf '%s' "$device"
}

# toml_value KEY VALUE: prints the value in the type of the key, since all UCI values are strings.
toml_value() {
	case $1 in
	install_rules | log_flows | accept_proxy | fast_open | ecn | shape | tls)
		case $2 in
		1 | yes | on | true | enabled) printf true ;;
		0 | no | off | false | disabled) printf false ;;
		*) toml_string "$2" ;;
		esac
		return ;;
	threads | max_flows | mss | mark | weight | tier | spares | ports | keep)
		case $2 in
		'' | *[!0-9]*) ;;
		*)
			printf '%s' "$2"
			return ;;
		esac ;;
	esac
	toml_string "$2"
}

toml_string() {
	printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

# UCI passes lists item by item.
toml_item() {
	[ "$TOML_LIST" = "$1" ] || toml_end_list
	TOML_LIST=$1
	TOML_ITEMS="${TOML_ITEMS:+$TOML_ITEMS, }$(toml_value "$1" "$2")"
}

toml_end_list() {
	[ -z "$TOML_LIST" ] || toml_line "$TOML_LIST = [$TOML_ITEMS]"
	TOML_LIST= TOML_ITEMS=
}
