"""Words that never tell one server from another: function words, generic verbs, schema talk."""

from __future__ import annotations

__all__ = ["STOP_WORDS"]

_FUNCTION_WORDS = """
    about above across after again against all almost along already also although always among and another any
    anyone anything are around as at away back be became because become been before being below between both but by
    came can cannot come could did do does doing done down during each either else enough etc even ever every
    everything few first following for from further had has have having he her here him his how however if in
    instead into is it its itself just last later latter least less like likely made many may maybe me mean might
    mine more most much must my near need never next no non none nor not nothing now of off often on once one only
    onto or other others otherwise our out over own per perhaps please quite rather really same second see several
    shall she should since so some someone something soon still such sure than that the their them then there
    therefore these they thing third this those though three through thus to together too toward two under unless
    until up upon us very via was way we well were what whatever when where whether which while who whole whom whose
    why will with within without would yes yet you your
"""

_GENERIC_VERBS = """
    accept access achieve act add adjust allow appear append apply ask assign attempt avoid begin bring build call
    cause change check choose clear close combine compare complete compute configure consider contain continue
    control convert copy create decide define delete depend describe detect determine disable display edit enable
    end ensure enter execute exist expect extract fail fetch fill filter find finish fit follow format generate get
    give go handle help hold identify implement import include increase indicate initialize insert keep know lead
    learn leave let limit list load look make manage match matter modify move obtain occur offer open operate
    organize overwrite pass perform place point prefer prepare prevent process produce provide put raise reach read
    receive recommend reduce refer remain remove rename replace report represent request require reset resolve
    respond result retrieve return review run save say search select send serve set show skip sort specify split
    start stop store submit supply support switch take tell think try turn update use used useful using utilize
    validate verify view wait want work write
"""

_SCHEMA_TALK = """
    able absolute action actual additional address ago algorithm alternative amount appropriate area arg args
    argument array aspect assistant attribute author automatic automatically available base based basic beginning
    best better big block body bool boolean bottom capability case category center certain changed changes char
    character choice class clean code collection comma common compatible component condition config configuration
    connection consistent content context correct count created critical current currently custom data date day
    default defaults definition deprecated desc description desired detail detailed dict dictionary different direct
    direction directly doc docs document double due easy effective efficient eg element empty entire entry enum
    environment equal error exact exactly example exception exclude existing explicit expression ext extension
    external failed false fast field file filename filepath final fine fixed flag float format found framework free
    frequently friendly full function functionality general generic given global good great greater group guide
    handler hard header help helpful high higher host human idea identifier ids implementation important incl
    inclusive individual info information initial inner input instance int integer interface internal invalid
    investigation issue item json key keyword kind language large larger left length level limited line link local
    location log long longer lot low lower main manual max maximum mcp meaningful member message metadata method min
    minimum minute missing mode model module month multiple name named native necessary negative new note null
    number object offset old operation opt option optional options order original output outside overall overview
    page pair parameter params parent part particular passed path pattern performed permanently permission person
    placeholder plain points position positive possible potential power practice precise preferred presence preserve
    previous primary problem professional program prompt proper properly property protocol provided purpose quality
    quantity question quick random range rate raw ready real reason reasonable recent recommended record reference
    regular related relative relevant remote required resource response resulting returned returns right root round
    rule safe sample scenario schema scope seconds section selected separate sequence server service session setting
    setup shared short showing side similar simple simultaneously single size small smaller software solution source
    special specific specified standard state statement static status step str string strong structure structured
    style subset success successful successfully suitable supported supports syntax system tag target task technique
    temporary term test text time title today tomorrow tool top total trigger true type types typical underlying
    unique unit unknown unlike updated url usage user utf valid value variable various version visible warning week
    wide width window word workflow working workspace world written year yesterday zero
"""

STOP_WORDS = frozenset(f"{_FUNCTION_WORDS} {_GENERIC_VERBS} {_SCHEMA_TALK}".split())
"""Lower-case and singular where that matters; a word that hides behind its plural is tested both ways."""
